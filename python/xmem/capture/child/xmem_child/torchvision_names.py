"""torchvision beside a torch that its compiled part does not load with: what it needs to be imported.

Its wheels are built for one build of torch. Beside another, ``torchvision.extension`` goes on without the
compiled operators, and the modules after it declare shapes for some of them by name (``_meta_registrations``,
torchvision 0.21 to 0.28), which fails where the names do not exist. Models and transforms need none of them;
a script that calls one is told so by torchvision itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch

_EXTENSION = "torchvision.extension"
_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_kept: list[torch.library.Library] = []  # names last as long as the library object


def follow_import(assume: Callable[[str], None]) -> None:
    """Define what is missing as soon as torchvision has tried to load its compiled part."""
    sys.meta_path.insert(0, _ExtensionFinder(assume))


class _ExtensionFinder:
    """Meta-path finder that lets the others find the module that loads the compiled part."""

    def __init__(self, assume: Callable[[str], None]) -> None:
        self._assume = assume

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _EXTENSION:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                self._define_missing()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _define_missing(self) -> None:
        missing = [schema for name, schema in _SCHEMAS.items() if not hasattr(torch.ops.torchvision, name)]
        if not missing:
            return
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in missing:
            library.define(schema)
        _kept.append(library)
        self._assume(
            "torchvision's compiled operators do not load beside this torch; the script ran without them"
        )
