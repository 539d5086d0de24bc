"""Weights are not initialized on the phantom GPU: nobody computes with them, and their pages stay untouched.

That saves most of the time and nearly all of the memory of building a model on the host; models larger than
the host's memory can be built this way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Smaller ones cost nothing, and may be data that a script looks at.
_LARGE_ELEMENTS = 1 << 14
_IN_PLACE = ("normal_", "uniform_", "log_normal_", "cauchy_", "exponential_", "geometric_", "random_")


def skip_initialisation() -> None:
    """Make ``torch.nn.init`` and large random fills of float tensors on the host do nothing."""
    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, _leave_first_argument(getattr(torch.nn.init, name)))
    for name in _IN_PLACE:
        setattr(torch.Tensor, name, _skip_when_large(getattr(torch.Tensor, name)))


def _leave_first_argument(fill: Callable[..., Any]) -> Callable[..., Any]:
    def leave(tensor: torch.Tensor, *_args: Any, **_options: Any) -> torch.Tensor:
        return tensor if _is_large(tensor) else fill(tensor, *_args, **_options)

    return leave


def _skip_when_large(fill: Callable[..., Any]) -> Callable[..., Any]:
    def skip(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        return tensor if _is_large(tensor) else fill(tensor, *args, **options)

    return skip


def _is_large(tensor: torch.Tensor) -> bool:
    is_data = tensor.is_floating_point() or tensor.is_complex()
    return bool(tensor.device.type == "cpu" and is_data and tensor.numel() >= _LARGE_ELEMENTS)
