"""torchvision beside a torch without CUDA, where the compiled part of its wheel does not load.

None of these networks need that part, but torchvision, and transformers with it, cannot be imported without
two operators that it defines.
"""

from __future__ import annotations

import re

import torch

_KEPT: list[torch.library.Library] = []  # what a library defines goes with it


def define_vision_operators() -> None:
    """Declare the operators where they are missing; nothing implements them."""
    if _KEPT or re.search("USE_CUDA=(ON|1|TRUE)", torch.__config__.show()):
        return
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    library.define("qnms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    _KEPT.append(library)
