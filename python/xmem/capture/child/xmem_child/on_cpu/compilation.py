"""``torch.compile`` is left out, but it is known where the script would run compiled code."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..records.run_notes import RunNotes

_EAGER_COMPILE = (
    "torch.compile was skipped and the model ran eagerly; compiled code usually keeps less memory"
)
_MAKES_KERNELS = "inductor"  # the default backend; others run what the script wrote, or are not known


class _Region(threading.local):
    """Whether this thread runs what the script compiled.

    Attributes:
        active: Whether it does.
    """

    active = False

    @contextmanager
    def set(self, active: bool) -> Iterator[None]:
        """Change that for a while: recomputation runs again what was compiled, outside of the call."""
        outer, self.active = self.active, active
        try:
            yield
        finally:
            self.active = outer


region = _Region()


def compile_eagerly(run: RunNotes) -> None:
    """Leave ``torch.compile`` out: what it makes for the CPU is not what it makes for CUDA."""

    def compile(model: Any = None, *_args: Any, **options: Any) -> Any:
        run.assume(_EAGER_COMPILE)
        if model is None:
            return lambda decorated: _marked(decorated, options)
        return _marked(model, options)

    def compile_module(module: torch.nn.Module, *_args: Any, **options: Any) -> None:
        run.assume(_EAGER_COMPILE)
        _marked(module, options)

    torch.compile = compile
    torch.nn.Module.compile = compile_module


def _marked(model: Any, options: dict[str, Any]) -> Any:
    """Return a function that runs another as compiled, or a module whose calls do."""
    if options.get("disable") or options.get("backend", _MAKES_KERNELS) != _MAKES_KERNELS:
        return model
    if isinstance(model, torch.nn.Module):
        # Where Module.compile keeps what it made.
        model._compiled_call_impl = _inside(model._call_impl)
        return model
    return _inside(model) if callable(model) and not isinstance(model, type) else model


def _inside(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with region.set(True):
            return function(*args, **kwargs)

    return run
