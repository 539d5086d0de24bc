"""torchvision beside a torch without CUDA, where the compiled part of its wheel does not load.

None of these networks need that part, but torchvision, and transformers with it, cannot be imported without
two operators that it defines.
"""

from __future__ import annotations

import torch

_KEPT: list[torch.library.Library] = []  # what a library defines goes with it


def define_vision_operators() -> None:
    """Declare the operators where they are missing; nothing implements them."""
    # How torch was built, which does not ask for devices: that would start CUDA, and end forking.
    if _KEPT or torch._C._has_cuda:
        return
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    library.define("qnms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    _KEPT.append(library)
