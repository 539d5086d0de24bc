"""A mode that sees every call into torch that Python makes, on in every thread of the process."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.overrides

# Reading these allocates nothing and says nothing about the device.
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


class FollowingMode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    """A function mode of which one object serves all threads, so it keeps no state of a call."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The mode switched on for this thread, once."""
        if self in torch.overrides._get_current_function_mode_stack():
            yield
        else:
            with self:
                yield


def follow_threads(mode: FollowingMode, on_end: Callable[[], None]) -> None:
    """Switch the mode on in every thread that starts from now on, and tell of its end in that thread."""
    start = threading.Thread.start

    @functools.wraps(start)
    def start_followed(self: threading.Thread) -> None:
        run = self.run

        def run_followed() -> None:
            with mode.entered():
                try:
                    run()
                finally:
                    on_end()

        self.run = run_followed  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_followed  # type: ignore[method-assign]


class _ModuleMove(threading.local):
    """Whether this thread is inside ``Module._apply``: what moves then is the model, not input."""

    active = False


module_move = _ModuleMove()


def follow_module_moves() -> None:
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

    torch.nn.Module._apply = apply_to_model


def queries() -> set[Any]:
    """Functions that ask a tensor for what it is: nothing is allocated and no memory is read."""
    tensor = torch.Tensor
    found = {getattr(tensor, name).__get__ for name in _QUERY_PROPERTIES if hasattr(tensor, name)}
    found |= {getattr(tensor, name) for name in _QUERY_METHODS if hasattr(tensor, name)}
    return found | {getattr(torch, name) for name in _QUERY_FUNCTIONS}


def reads() -> set[Any]:
    """Functions that give Python the values of a tensor."""
    return {getattr(torch.Tensor, name) for name in _READ_METHODS if hasattr(torch.Tensor, name)}
