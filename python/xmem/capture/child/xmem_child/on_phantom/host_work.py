"""Arithmetic on large tensors of the host is skipped where they are weights, gradients or optimizer state.

With an offloaded optimizer (DeepSpeed's CPU Adam, any of torch's with parameters on the host) the gradients
come from the phantom GPU and the weights go back to it: nobody looks at the numbers. Computing them would
take the time of a real step, and would make every page of master weights and state resident. Tensors are made
as usual; their pages stay untouched and read as zeros.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

# Below, arithmetic costs nothing: step counters, norms, scales.
_LARGE_ELEMENTS = 1 << 14
_ZEROS = ("zeros", "zeros_like", "new_zeros", "zero_")
# Not pointwise by torch's tags, and copies or conversions all the same.
_COPIES = ("copy_", "clone", "_to_copy", "cat", "pin_memory", "_pin_memory", "fill_")
_KERNELS = ("CPUAdamBuilder", "CPUAdagradBuilder", "CPULionBuilder")
# Methods in which DeepSpeed's ZeRO works on weights and state of the host, by module and class.
_OFFLOADING = (
    ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer"),
    ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3"),
)
_NOTE = "optimizer arithmetic on host tensors was skipped: it takes no GPU memory"


class HostWork(TorchDispatchMode):  # type: ignore[misc]
    """Makes operators on large float tensors of the host return tensors of zeros and change none."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, or only make what it would return."""
        kwargs = kwargs or {}
        if FakeTensor in types:
            return func(*args, **kwargs)
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor or the like: it calls operators on what it wraps
        name = func._schema.name.partition("::")[2]
        if name in _ZEROS:
            return _zeros(func, name, args, kwargs)
        tensors = list(_tensors((args, kwargs)))
        if not _is_skipped(func, name, tensors):
            return func(*args, **kwargs)
        if name.startswith(("_foreach_", "_fused_")):
            return _of_lists(func, args, kwargs)
        if func._schema.is_mutable:
            return _mutated(func, args, kwargs)
        return _made_of(func, args, kwargs, pinned="pin_memory" in name)


def skip_host_work(assume: Callable[[str], None]) -> None:
    """Have the steps of optimizers whose parameters are on the host skip their arithmetic.

    Args:
        assume: Takes a sentence once, when that happens.
    """
    wrap_step, build = Optimizer.profile_hook_step, Optimizer.__init__

    def wrap_skipping(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def skipping(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
            # A closure runs the model, whose work is not skipped.
            if args or kwargs.get("closure") is not None or not _holds_large_host_tensors(self):
                return step(self, *args, **kwargs)
            assume(_NOTE)
            with HostWork():
                return step(self, *args, **kwargs)

        wrapped: Callable[..., Any] = wrap_step(skipping)
        return wrapped

    @functools.wraps(build)
    def build_skipping(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        _replace_kernels(sys.modules.get(type(self).__module__))
        _skip_in_zero(assume)
        build(self, *args, **kwargs)

    Optimizer.profile_hook_step = staticmethod(wrap_skipping)
    Optimizer.__init__ = build_skipping


class _NoKernels:
    """Stands in for DeepSpeed's compiled optimizers, which compute on the host: any call does nothing."""

    def load(self, *_args: Any, **_options: Any) -> _NoKernels:
        """Return the stand-in for the compiled module."""
        return self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_options: None


def _replace_kernels(module: Any) -> None:
    for name in _KERNELS:
        if hasattr(module, name):
            setattr(module, name, _NoKernels)


def _skip_in_zero(assume: Callable[[str], None]) -> None:
    for module, name in _OFFLOADING:
        owner = getattr(sys.modules.get(module), name, None)
        if owner is None or hasattr(owner, "_xmem_skips"):
            continue
        owner._xmem_skips = True
        owner.__init__ = _skipping(owner.__init__, assume)
        owner.step = _skipping(owner.step, assume)


def _skipping(method: Callable[..., Any], assume: Callable[[str], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def skip(*args: Any, **kwargs: Any) -> Any:
        assume(_NOTE)
        with HostWork():
            return method(*args, **kwargs)

    return skip


def _holds_large_host_tensors(optimizer: Optimizer) -> bool:
    # A script that has not touched the GPU gets nothing from it.
    return torch.cuda.is_initialized() and any(
        _is_large(parameter) for group in optimizer.param_groups for parameter in group["params"]
    )


def _is_large(tensor: torch.Tensor) -> bool:
    is_data = tensor.is_floating_point() or tensor.is_complex()
    strided = tensor.layout is torch.strided
    return bool(is_data and strided and tensor.device.type == "cpu" and tensor.numel() >= _LARGE_ELEMENTS)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)


def _is_skipped(func: Any, name: str, tensors: list[torch.Tensor]) -> bool:
    if not any(map(_is_large, tensors)) or any(tensor.device.type != "cpu" for tensor in tensors):
        return False
    if func.is_view:
        return False
    pointwise = torch.Tag.pointwise in func.tags or name.startswith(("_foreach_", "_fused_"))
    if name == "_to_copy":  # to the GPU it is a real copy
        return True
    return pointwise or name in _COPIES


def _mutated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what an operator that writes to its arguments returns: the one written to, or nothing."""
    return kwargs.get("out", args[0]) if func._schema.returns else None


def _of_lists(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute only the small tensors in lists that hold one tensor per parameter."""
    count = len(args[0])

    def is_of_each(value: Any) -> bool:
        return isinstance(value, (list, tuple)) and len(value) == count

    lists = [value for value in (*args, *kwargs.values()) if is_of_each(value)]
    small = [place for place in range(count) if not any(map(_is_large, _tensors([v[place] for v in lists])))]

    def of_small(value: Any) -> Any:
        return [value[place] for place in small] if is_of_each(value) else value

    computed = None
    if small:
        computed = func(*map(of_small, args), **{key: of_small(value) for key, value in kwargs.items()})
    if func._schema.is_mutable:
        return None
    made = list(_made_of(func, args, kwargs, pinned=False))
    for place, tensor in zip(small, computed or [], strict=True):
        made[place] = tensor
    return made


def _made_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, pinned: bool) -> Any:
    """Make what an operator would return, from its shapes alone."""
    if "device" in kwargs and torch.device(kwargs["device"] or "cpu").type != "cpu":
        return func(*args, **kwargs)
    if pinned:
        return torch.empty_like(args[0], pin_memory=True)
    to_meta = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    shapes = func(*_on_meta(args), **_on_meta(to_meta))
    return _on_host(shapes, pinned=bool(kwargs.get("pin_memory")))


def _on_meta(values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        return torch.empty_strided(values.size(), values.stride(), dtype=values.dtype, device="meta")
    if isinstance(values, dict):
        return {key: _on_meta(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(_on_meta(value) for value in values)
    return values


def _on_host(shapes: Any, *, pinned: bool) -> Any:
    if isinstance(shapes, (list, tuple)):
        return type(shapes)(_on_host(shape, pinned=pinned) for shape in shapes)
    if not isinstance(shapes, torch.Tensor):
        return shapes
    made = torch.empty_strided(shapes.size(), shapes.stride(), dtype=shapes.dtype, pin_memory=pinned)
    _clear(made)
    return made


def _zeros(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name == "zero_":
        if not _is_large(args[0]) or not _clear(args[0]):
            func(*args, **kwargs)
        return args[0]
    make = {
        "zeros": torch.ops.aten.empty.memory_format,
        "zeros_like": torch.ops.aten.empty_like.default,
        "new_zeros": torch.ops.aten.new_empty.default,
    }[name]
    if func._overloadname != "default":  # of tensors with names
        return func(*args, **kwargs)
    made = make(*args, **kwargs)
    if not _is_large(made) or not _clear(made):
        made.zero_()
    return made


def _clear(tensor: torch.Tensor) -> bool:
    """Make a dense host tensor read as zeros without touching its pages; return whether it is dense."""
    if not _is_dense(tensor):
        return False
    clear = ctypes.CDLL(None).xmem_phantom_write_zeros
    clear(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel() * tensor.element_size()))
    return True


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether its elements fill a stretch of memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.size(), strict=True)
    ):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
