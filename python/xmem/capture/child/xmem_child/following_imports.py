"""Actions that run once a module is imported: torch or the script may import it later, or never."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


def after_import(name: str, action: Action) -> None:
    """Call ``action`` with a module when its import ends, or now if it is there already."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    _finder.wanted.setdefault(name, []).append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder:
    """Meta-path finder that lets the others find the modules.

    Attributes:
        wanted: Actions by the name of the module that they wait for, in order.
    """

    def __init__(self) -> None:
        self.wanted: dict[str, list[Action]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.wanted:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for action in self.wanted.pop(name, ()):
                    action(module)
                if not self.wanted and self in sys.meta_path:
                    sys.meta_path.remove(self)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _Finder()
