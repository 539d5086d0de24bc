"""Replaces functions and classes of ``torch.distributed`` in every module that exports them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_EXPORTERS = (
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.distributed.rendezvous",
    "torch.distributed.device_mesh",
)


def replace(name: str, stand_in: Any) -> None:
    """Replace a name of ``torch.distributed`` wherever it is exported."""
    original = getattr(c10d, name, None) or getattr(dist, name, None)
    if original is None:
        return
    for module_name in _EXPORTERS:
        module = sys.modules.get(module_name)
        if getattr(module, name, None) is original:
            setattr(module, name, stand_in)


def _wrap(name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(c10d, name, None)
    if original is not None:
        replace(name, functools.wraps(original)(functools.partial(wrapper, original)))


def wrap(name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function with ``wrapper(original, ...)``."""
    original = getattr(c10d, name, None)
    if original is not None:
        replace(name, functools.wraps(original)(functools.partial(wrapper, original)))
