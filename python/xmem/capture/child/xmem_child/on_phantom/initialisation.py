"""Weights are not initialized on the phantom GPU: nobody computes with them, and their pages stay untouched.

That saves most of the time and nearly all of the memory of building a model on the host; models larger than
the host's memory can be built this way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

# Smaller ones cost nothing, and may be data that a script looks at.
_LARGE_ELEMENTS = 1 << 14
# On the GPU, what a script makes of them (the routes of experts, say) is followed.
_LARGE_ELEMENTS_ON_GPU = 1 << 17
_CONSTANT = ("constant_", "ones_", "zeros_", "eye_", "dirac_")
_IN_PLACE = ("normal_", "uniform_", "log_normal_", "cauchy_", "exponential_", "geometric_", "random_")


def skip_initialisation(
    skipped: Callable[[torch.Tensor], None],
    unknown: Callable[[torch.Tensor], AbstractContextManager[None]] | None = None,
) -> None:
    """Make ``torch.nn.init`` and large random fills of float tensors on the host do nothing.

    Args:
        skipped: Called with each tensor that was left as it was.
        unknown: Returns a context in which random numbers are drawn for a tensor of the GPU without following
            them; None where that costs nothing. Drawn for weights, they take seconds, and nobody reads them.
    """

    left = 0  # where the last of them lies

    def leave_large(fill: Callable[..., Any]) -> Callable[..., Any]:
        def leave(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            nonlocal left
            if not _is_large(tensor):
                return fill(tensor, *args, **options)
            left = tensor.data_ptr()
            skipped(tensor)
            return tensor

        return leave

    def draw_unknown(fill: Callable[..., Any]) -> Callable[..., Any]:
        def draw(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            if unknown is None or not _is_large(tensor, "cuda", _LARGE_ELEMENTS_ON_GPU):
                return fill(tensor, *args, **options)
            with unknown(tensor):
                return fill(tensor, *args, **options)

        return draw

    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            fill = leave_large(getattr(torch.nn.init, name))
            setattr(torch.nn.init, name, fill if name in _CONSTANT else draw_unknown(fill))
    for name in _IN_PLACE:
        setattr(torch.Tensor, name, leave_large(getattr(torch.Tensor, name)))

    # Truncated normal distributions that libraries bring themselves (timm's) are made of a uniform one, at a
    # second for each 60 million weights.
    inverse = torch.Tensor.erfinv_

    def erfinv_(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if _is_large(tensor) and tensor.data_ptr() == left else inverse(tensor)

    torch.Tensor.erfinv_ = erfinv_


def _is_large(tensor: torch.Tensor, device: str = "cpu", elements: int = _LARGE_ELEMENTS) -> bool:
    is_data = tensor.is_floating_point() or tensor.is_complex()
    return bool(tensor.device.type == device and is_data and tensor.numel() >= elements)
