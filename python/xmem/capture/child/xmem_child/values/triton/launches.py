"""Launches of Triton kernels: what is known about their arguments, and about what they wrote.

A kernel runs on the host when somebody asks for what it wrote, and only if all that it reads is known.
Kernels compiled by Inductor, which are the model's arithmetic, are not followed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from ...following_imports import after_import
from ...unseen import Unseen
from .. import host_tensors
from ..contents import Contents, Fact, storage_of
from ..operators import unfollowed
from .interpret import run
from .memory import Memory, Span, UnknownMemoryError
from .program import Program, UnsupportedError, read
from .repeats import Repeats

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_repeats = Repeats()
_unseen = Unseen()  # a run on the host makes hundreds of thousands of events


def follow_launches(contents: Contents, failed: Callable[[str, Exception], None]) -> None:
    """Follow the kernels that are launched once Triton is imported.

    Args:
        contents: What is known.
        failed: Takes the kernel and an error of ours, which the script does not see.
    """
    after_import("triton.runtime.jit", functools.partial(_follow, contents, failed))


def _follow(contents: Contents, failed: Callable[[str, Exception], None], module: ModuleType) -> None:
    programs: dict[str, Program | None] = {}
    launch = module.JITFunction.run

    @functools.wraps(launch)
    def launch_followed(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        held = {}
        if not (warmup or torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing()):
            held = _held(contents, [*args, *kwargs.values()])
        if not held:
            return launch(self, *args, grid=grid, warmup=warmup, **kwargs)
        size = _Grid(grid)
        kernel = launch(self, *args, grid=size.of if callable(grid) else grid, warmup=warmup, **kwargs)
        if kernel is not None:
            try:
                with unfollowed(), torch.no_grad(), _unseen:
                    _Launch(self, kernel, size, args, kwargs).follow(contents, programs, held)
            except Exception as error:
                failed(self.fn.__name__, error)
        return kernel

    module.JITFunction.run = launch_followed


def _held(contents: Contents, values: list[Any]) -> dict[int, Fact]:
    """Return what is known about tensors, by the addresses of their storages."""
    tensors = (value for value in values if isinstance(value, torch.Tensor) and value.is_cuda)
    held = ((torch._C._storage_address(tensor), contents.hold(tensor)) for tensor in tensors)
    return {address: fact for address, fact in held if fact is not None}


class _Grid:
    """The grid of a launch, which a script may give as a function; Triton calls that."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._found = () if callable(given) else given

    def of(self, arguments: dict[str, Any]) -> Any:
        self._found = self._given(arguments)
        return self._found

    def size(self) -> tuple[int, int, int]:
        x, y, z = (*(int(size) for size in self._found), 1, 1, 1)[:3]
        return x, y, z


class _Launch:
    """One launch.

    Args:
        function: Triton's function.
        kernel: The kernel that it compiled.
        grid: Grid of the launch.
        args: Arguments of the script's call.
        kwargs: Keyword arguments of that call.
    """

    def __init__(self, function: Any, kernel: Any, grid: _Grid, args: Any, kwargs: Any) -> None:
        names = function.signature.parameters
        bound = function.signature.bind(*args, **{name: a for name, a in kwargs.items() if name in names})
        bound.apply_defaults()
        constants = {key[0] if isinstance(key, tuple) else key for key in kernel.src.constants}
        self._kernel = kernel
        self._grid = grid
        self._arguments = [
            value
            for place, (name, value) in enumerate(bound.arguments.items())
            if name not in constants and place not in constants
        ]

    def follow(self, contents: Contents, programs: dict[str, Program | None], held: dict[int, Fact]) -> None:
        """Note what is known after the launch."""
        program = self._program(programs)
        if program is None or not self._fits(program):
            return
        tensors = {torch._C._storage_address(a): a for a in self._arguments if isinstance(a, torch.Tensor)}
        written = {self._storage(place) for place in program.written}
        loaded = {self._storage(place) for place in program.loaded}
        for storage, fact in held.items():
            if storage in tensors and storage not in written:
                contents.renew(tensors[storage], fact)
        if not loaded <= written | set(held):
            return
        spans = {
            storage: _span(contents, tensors[storage], held.get(storage) if storage in written else None)
            for storage in written | loaded
        }
        if not all(spans[storage].is_known for storage in loaded - written):
            return
        later = _Later(program, self._grid.size(), self._numbers(), list(spans.values()))
        for storage in written:
            if spans[storage].content is not None:
                whole = _whole(tensors[storage])
                contents.set_later(whole, functools.partial(later.of, spans[storage], whole.dtype))

    def _program(self, programs: dict[str, Program | None]) -> Program | None:
        key = self._kernel.hash
        if key not in programs:
            try:
                programs[key] = read(self._kernel.asm["ttir"])
            except (UnsupportedError, KeyError):
                programs[key] = None
        return programs[key]

    def _fits(self, program: Program) -> bool:
        """Return whether the arguments fit the program: plain tensors for its pointers, otherwise numbers."""
        kinds = list(program.parameters.values())
        return len(kinds) == len(self._arguments) and all(
            type(a) in _PLAIN if kind.element == "ptr" else isinstance(a, (bool, int, float))
            for kind, a in zip(kinds, self._arguments, strict=True)
        )

    def _storage(self, place: int) -> int:
        return int(torch._C._storage_address(self._arguments[place]))

    def _numbers(self) -> list[int | float]:
        return [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in self._arguments]


class _Later:
    """Runs a kernel when what it wrote is asked for."""

    def __init__(
        self, program: Program, grid: tuple[int, int, int], arguments: list[int | float], spans: list[Span]
    ) -> None:
        self._program = program
        self._grid = grid
        self._arguments = arguments
        self._spans = spans
        self._ran = False
        self._worked = False

    def of(self, span: Span, dtype: torch.dtype) -> torch.Tensor | None:
        """Return what a storage holds after the kernel, of shape (elements,); None if unknown."""
        if not self._ran:
            self._ran = True
            self._run()
        result = span.result() if self._worked else None
        return None if result is None else result.view(dtype)

    def _run(self) -> None:
        with unfollowed(), torch.no_grad(), _unseen:
            memory = Memory(self._spans)
            key = _repeats.key(self._program, self._grid, self._arguments, self._spans)
            if key in _repeats.failed:
                return
            if not _repeats.repeat(key, memory):
                try:
                    run(self._program, self._grid, self._arguments, memory)
                except (UnsupportedError, UnknownMemoryError, RuntimeError):
                    _repeats.failed.add(key)  # also what PyTorch refuses, such as a division by zero
                    return
                _repeats.keep(key, memory)
        self._worked = True


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole storage of a tensor of the GPU, of shape (elements,)."""
    return tensor.as_strided((storage_of(tensor).nbytes() // tensor.element_size(),), (1,), 0)


def _span(contents: Contents, tensor: torch.Tensor, touched: Fact | None) -> Span:
    """Return the memory of a storage as it was before the launch.

    Args:
        contents: What is known.
        tensor: A tensor with that storage.
        touched: What was known before the launch, which ended it.
    """
    storage = storage_of(tensor)
    address, nbytes = storage.data_ptr(), storage.nbytes()
    whole = _whole(tensor)
    if not contents.is_small(whole):
        return Span(address, nbytes, None, None)
    if touched is not None:
        contents.renew(tensor, touched)
    values = contents.tensor(whole)
    if touched is not None:
        contents.forget(tensor)
    if values is not None:
        return Span(
            address, nbytes, values.clone(memory_format=torch.contiguous_format).view(torch.uint8), None
        )
    return Span(
        address,
        nbytes,
        host_tensors.zeros(nbytes, dtype=torch.uint8),
        host_tensors.zeros(nbytes, dtype=torch.bool),
    )
