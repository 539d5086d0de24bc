"""A mode that sees every call into torch that Python makes, on in every thread of the process."""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.overrides

from .patches import Patches
from .watching.spans import SpanRecorder

# Reading these allocates nothing and reveals nothing about the device.
_QUERY_PROPERTIES = """
    shape dtype requires_grad grad_fn is_leaf ndim layout names is_sparse is_sparse_csr is_quantized is_meta
    is_nested is_mkldnn is_mps is_xpu is_xla is_ipu is_hpu is_mtia is_vulkan is_maia itemsize nbytes _version
    output_nr name _backward_hooks _post_accumulate_grad_hooks volatile _base retains_grad
""".split()  # noqa: SIM905 - reads better than a column
_QUERY_METHODS = """
    size dim ndimension numel nelement stride is_contiguous is_floating_point is_complex is_signed
    element_size storage_offset data_ptr untyped_storage storage __len__ is_inference requires_grad_
    register_hook
    register_post_accumulate_grad_hook retain_grad is_conj is_neg _is_view __hash__
    is_same_size has_names __format__ __repr__
""".split()  # noqa: SIM905
_QUERY_FUNCTIONS = ("is_floating_point", "is_complex", "is_signed", "is_tensor", "is_same_size", "numel")
_READ_METHODS = """
    item tolist __bool__ __float__ __int__ __index__ __contains__ is_nonzero
""".split()  # noqa: SIM905


_GONE_S = 1.0
_LAST_THREADS = 64


class FollowingMode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """A function mode of which one object serves all threads, so it keeps no state of a call.

    Args:
        spans: Where the calls that it sees are noted.
    """

    def __init__(self, spans: SpanRecorder) -> None:
        super().__init__()
        self._spans = spans

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Switch the mode on for this thread, once."""
        if self in torch.overrides._get_current_function_mode_stack():
            yield
        else:
            with self:
                yield

    @contextmanager
    def reentered(self) -> Iterator[None]:
        """Switch the mode on for user code that torch calls back from inside one of its own calls."""
        self._spans.flush()
        try:
            with self.entered():
                yield
        finally:
            self._spans.flush()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Switch the mode off for this thread, if it is the innermost one."""
        stack = torch.overrides._get_current_function_mode_stack()
        if not stack or stack[-1] is not self:
            yield
            return
        torch.overrides._pop_mode()
        try:
            yield
        finally:
            torch.overrides._push_mode(self)


def follow_threads(
    mode: FollowingMode, *, on_end: Callable[[], None], on_start: Callable[[], None] = lambda: None
) -> None:
    """Switch the mode on in every thread that starts from now on; ``on_start`` is called first in each, and
    ``on_end`` last."""
    start = threading.Thread.start
    ended: list[int] = []
    atexit.register(_wait_until_gone, ended)

    @functools.wraps(start)
    def start_followed(self: threading.Thread) -> None:
        run = self.run

        def run_followed() -> None:
            on_start()
            try:
                with mode.entered():
                    run()
            finally:
                on_end()
                ended.append(threading.get_native_id())

        self.run = run_followed  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_followed  # type: ignore[method-assign]


def _wait_until_gone(threads: list[int]) -> None:
    """Let threads that have ended in Python end for good before the interpreter does.

    Torch keeps a Python object in the thread-local memory of a thread that ran a backward pass, and drops it
    after ``Thread.join`` has returned: a script that exits at once would be aborted.
    """
    deadline = time.monotonic() + _GONE_S
    for thread in threads[-_LAST_THREADS:]:
        while Path(f"/proc/self/task/{thread}").exists() and time.monotonic() < deadline:
            time.sleep(0.001)


class _ModuleMove(threading.local):
    """Whether this thread is inside ``Module._apply``: what moves then is the model, not input."""

    active = False


module_move = _ModuleMove()


def follow_module_moves(patches: Patches) -> None:
    """Keep ``module_move`` up to date."""
    apply = torch.nn.Module._apply

    @functools.wraps(apply)
    def apply_to_model(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        outer = module_move.active
        module_move.active = True
        try:
            return apply(self, *args, **kwargs)
        finally:
            module_move.active = outer

    patches.replace(torch.nn.Module, "_apply", apply_to_model)


def queries() -> set[Any]:
    """Return the functions that only query a tensor's properties: they allocate and read no memory."""
    tensor = torch.Tensor
    found = {getattr(tensor, name).__get__ for name in _QUERY_PROPERTIES if hasattr(tensor, name)}
    found |= {getattr(tensor, name) for name in _QUERY_METHODS if hasattr(tensor, name)}
    return found | {getattr(torch, name) for name in _QUERY_FUNCTIONS}


INTEGER_READS = frozenset({torch.Tensor.item, torch.Tensor.__int__, torch.Tensor.__index__})
"""The functions that make a Python integer of a tensor."""


def read_unsigned(read: Callable[..., Any], tensor: torch.Tensor) -> int:
    """Read a number of 64 bits without a sign, wherever it is. Kernels in Python, which follow the values,
    give PyTorch's dispatcher signed ones only. What PyTorch makes an int of has to fit one with a sign."""
    number = int(read(tensor.view(torch.int64))) % 2**64
    if number >= 2**63 and read is not torch.Tensor.item:
        raise RuntimeError("value cannot be converted to type int64_t without overflow")
    return number


def reads() -> set[Any]:
    """Return the functions that give Python the values of a tensor."""
    return {getattr(torch.Tensor, name) for name in _READ_METHODS if hasattr(torch.Tensor, name)}
