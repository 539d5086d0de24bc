"""Changes of torch that can be taken back: a capture never does, a recording of a block must."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast


class Patches:
    """What was changed, undone in the opposite order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def replace(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute of a module, a class or an object."""
        own = vars(owner)
        if name in own:
            before = own[name]  # a static method stays one
            self._undo.append(lambda: setattr(owner, name, before))
        else:
            self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def ignore_warning(self, message: str) -> None:
        """Filter warnings out whose text begins with a regular expression."""
        warnings.filterwarnings("ignore", message=message)
        added = warnings.filters[0]

        def remove() -> None:
            filters = cast("list[Any]", warnings.filters)
            if added in filters:
                filters.remove(added)

        self._undo.append(remove)

    def on_undo(self, action: Callable[[], object]) -> None:
        """Have something else done when the changes are undone."""
        self._undo.append(action)

    def undo(self) -> None:
        """Take all changes back."""
        while self._undo:
            self._undo.pop()()
