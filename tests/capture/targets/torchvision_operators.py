"""Beside a CPU torch, torchvision's compiled operators do not load: their names are enough to import the rest."""

from importlib.util import find_spec
from pathlib import Path

import torch

_spec = find_spec("torchvision")
try:
    torch.ops.load_library(Path(_spec.origin).parent / "_C.so")
except OSError:
    _library = torch.library.Library("torchvision", "DEF")
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
