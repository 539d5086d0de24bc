"""Optimizer steps as events, which count iterations."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim.optimizer import (
    Optimizer,
    _default_to_fused_or_foreach,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..patches import Patches


class StepObserver(Protocol):
    """Follows the optimizers of the script."""

    def optimizer_built(self, _optimizer: Optimizer) -> None:
        """Called before an optimizer is set up."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Called before an outermost ``step``, when the gradients are there."""

    def after_step(self, optimizer: Optimizer, skipped: bool) -> None:
        """Called after it, outside its annotation; skipped when a ``GradScaler`` found no finite
        gradients."""


class _Depth(threading.local):
    steps = 0


class _Calls:
    """What is called around steps."""

    def __init__(self, observer: StepObserver) -> None:
        self.before: Callable[[Optimizer], None] = observer.before_step
        self.after: Callable[..., None] = observer.after_step
        self.hidden = False


class _Compiler:
    """Whether the script compiles, and what the compiler must then not see: what follows steps."""

    in_use = False
    followed: tuple[_Calls, Callable[..., Any]] | None = None


def install(observer: StepObserver) -> None:
    """Follow every optimizer built from now on, and ``GradScaler.step``; for the life of the process."""
    _follow_steps(_Calls(observer))
    _follow_construction(observer)
    _follow_scaler(observer)


def hide_from_dynamo() -> None:
    """Keep ``torch.compile`` out of what follows steps, where a script compiles ``optimizer.step``: the step
    itself is compiled as it would be. Imports dynamo.
    """
    _Compiler.in_use = True
    if _Compiler.followed is None:
        return
    disable: Any = importlib.import_module("torch._dynamo").disable
    calls, around_steps = _Compiler.followed
    if not calls.hidden:
        calls.before, calls.after, calls.hidden = disable(calls.before), disable(calls.after), True
    # Its code alone, the same for every class, is left to Python; what it calls is not.
    disable(around_steps, recursive=False)


class StepHooks:
    """Follows the outermost steps of all optimizers, also of those that were built before.

    The step's annotation is still open when ``after_step`` is called.
    """

    def __init__(self, observer: StepObserver) -> None:
        self._observer = observer
        self._running = threading.local()

    def install(self, patches: Patches) -> None:
        """Register torch's global hooks."""
        patches.on_undo(register_optimizer_step_pre_hook(self._before).remove)
        patches.on_undo(register_optimizer_step_post_hook(self._after).remove)

    def _before(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        outermost = getattr(self._running, "outermost", None)
        # The same one again: its last step was left by an exception.
        if outermost is None or outermost is optimizer:
            self._running.outermost = optimizer
            self._observer.before_step(optimizer)

    def _after(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        if getattr(self._running, "outermost", None) is optimizer:
            self._running.outermost = None
            self._observer.after_step(optimizer, skipped=False)


def _follow_steps(calls: _Calls) -> None:
    # torch wraps the step of each class once, at the first construction: this adds an outer layer to its
    # wrapper, so that the observer may end the recording with the step's annotation closed.
    wrap_step = Optimizer.profile_hook_step
    depth = _Depth()

    def wrap_followed(step: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = wrap_step(step)

        @functools.wraps(wrapped)
        def followed(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if depth.steps:
                return wrapped(self, *args, **kwargs)
            calls.before(self)
            depth.steps += 1
            try:
                result = wrapped(self, *args, **kwargs)
            finally:
                depth.steps -= 1
            calls.after(self, skipped=False)
            return result

        _Compiler.followed = (calls, followed)
        if _Compiler.in_use:
            hide_from_dynamo()
        return followed

    Optimizer.profile_hook_step = staticmethod(wrap_followed)


def _follow_construction(observer: StepObserver) -> None:
    build = Optimizer.__init__

    @functools.wraps(build)
    def build_followed(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        observer.optimizer_built(self)
        build(self, *args, **kwargs)

    Optimizer.__init__ = build_followed


def _follow_scaler(observer: StepObserver) -> None:
    scaler = torch.amp.GradScaler
    maybe_step = scaler._maybe_opt_step

    @functools.wraps(maybe_step)
    def maybe_step_followed(
        self: Any, optimizer: Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        # The same sum decides inside ``step`` whether it is skipped.
        skipped = any(found.item() for found in optimizer_state["found_inf_per_device"].values())
        result = maybe_step(self, optimizer, optimizer_state, *args, **kwargs)
        if skipped:
            observer.after_step(optimizer, skipped=True)
        return result

    scaler._maybe_opt_step = maybe_step_followed


def describe(optimizer: Optimizer) -> dict[str, Any]:
    """Return the row of an optimizer in the trace's metadata."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    defaults = optimizer.param_groups[0]
    foreach, fused = defaults.get("foreach"), bool(defaults.get("fused"))
    if foreach is None and "foreach" in defaults and not fused:
        differentiable = bool(defaults.get("differentiable"))
        _, foreach = _default_to_fused_or_foreach(parameters, differentiable, use_fused=False)
    return {
        "name": type(optimizer).__name__,
        "foreach": bool(foreach),
        "fused": fused,
        "parameters": len(parameters),
    }
