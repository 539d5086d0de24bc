"""Lets torchvision be imported beside a torch that its compiled part does not load with.

Its wheels are built for one build of torch. Beside another, ``torchvision.extension`` goes on without the
compiled operators, and the modules after it declare shapes for some of them by name (``_meta_registrations``,
torchvision 0.21 to 0.28), which fails where the names do not exist. Models and transforms need none of them;
torchvision itself tells a script that calls one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

from ..following_imports import after_import

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_kept: list[torch.library.Library] = []  # names last as long as the library object


def follow_import(assume: Callable[[str], None]) -> None:
    """Define what is missing as soon as torchvision has tried to load its compiled part."""

    def define_missing(_module: ModuleType) -> None:
        missing = [schema for name, schema in _SCHEMAS.items() if not hasattr(torch.ops.torchvision, name)]
        if not missing:
            return
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in missing:
            library.define(schema)
        _kept.append(library)
        assume("torchvision's compiled operators do not load with this torch; the script ran without them")

    after_import("torchvision.extension", define_missing)
