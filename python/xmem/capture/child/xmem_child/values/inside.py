"""Follows the operators that modes and tensor subclasses call, too.

PyTorch calls a ``__torch_dispatch__`` with all keys above its own excluded, that of ``operators`` among them:
what DTensor, nested tensors or selective checkpointing do inside would go unseen. Each such method puts the
key back first.
"""

from __future__ import annotations

import functools
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..following_imports import after_import
from .operators import KEY

_C = torch._C
_METHOD = "__torch_dispatch__"
_FOLLOWED = "_xmem_followed"

# What traces for torch.compile and torch.export: no memory of the GPU is behind it.
_TRACERS = ("torch._subclasses.", "torch.fx.", "torch._functorch.", "torch._dynamo.", "torch._inductor.")
_TRACING = tuple(
    getattr(_C._TorchDispatchModeKey, name)
    for name in ("FAKE", "PROXY", "FUNCTIONAL")
    if hasattr(_C._TorchDispatchModeKey, name)
)


def follow_inside() -> None:
    """Follow what modes and subclasses call, both existing and future ones."""
    for base in (torch.Tensor, TorchDispatchMode):
        _follow_subclasses(base)
        _follow_coming(base)
    after_import("torch.distributed.tensor._dispatch", _follow_dtensors)


def _follow_subclasses(base: Any) -> None:
    for subclass in base.__subclasses__():
        _follow_class(subclass)
        _follow_subclasses(subclass)


def _follow_coming(base: Any) -> None:
    own = base.__dict__.get("__init_subclass__")

    def init_subclass(cls: Any, /, **options: Any) -> None:
        if own is None:
            super(base, cls).__init_subclass__(**options)
        else:
            own.__func__(cls, **options)
        _follow_class(cls)

    base.__init_subclass__ = classmethod(init_subclass)


def _follow_class(cls: Any) -> None:
    method = cls.__dict__.get(_METHOD)
    if method is None or cls.__module__.startswith(_TRACERS):
        return
    if isinstance(method, (classmethod, staticmethod)):
        if isinstance(method.__func__, FunctionType):
            setattr(cls, _METHOD, type(method)(_followed(method.__func__)))
    elif isinstance(method, FunctionType):
        setattr(cls, _METHOD, _followed(method))


def _followed(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if any(_C._get_dispatch_mode(key) is not None for key in _TRACING):
            return method(*args, **kwargs)
        with _C._SetExcludeDispatchKeyGuard(KEY, False):
            return method(*args, **kwargs)

    setattr(call, _FOLLOWED, True)
    return call


def _follow_dtensors(module: ModuleType) -> None:
    """Follow what DTensor's dispatcher calls, which C++ calls in place of the method since torch 2.10."""
    dispatcher, local_results = module.OpDispatcher, "_dispatch_get_local_results_slow_path"
    if hasattr(dispatcher, local_results):
        setattr(dispatcher, local_results, _followed(getattr(dispatcher, local_results)))

    def handlers(self: Any) -> Any:
        return self.__dict__[_HANDLERS]

    def set_handlers(self: Any, handlers: dict[Any, Any]) -> None:
        self.__dict__[_HANDLERS] = _Handlers(handlers)

    setattr(dispatcher, _HANDLERS, property(handlers, set_handlers))


_HANDLERS = "_custom_op_handlers"


class _Handlers(dict[Any, Any]):
    """Functions that stand in for operators of DTensors, each followed."""

    def __init__(self, handlers: dict[Any, Any]) -> None:
        super().__init__()
        self.update(handlers)

    def __setitem__(self, operator: Any, handler: Any) -> None:
        super().__setitem__(operator, handler if hasattr(handler, _FOLLOWED) else _followed(handler))

    def update(self, handlers: Any) -> None:  # type: ignore[override]
        for operator, handler in dict(handlers).items():
            self[operator] = handler
