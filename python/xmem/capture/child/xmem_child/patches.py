"""Changes to torch that can be undone: a capture never does, a recording of a block must."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast


class Patches:
    """A list of changes, undone in the opposite order."""

    def __init__(self) -> None:
        self._changes = ExitStack()

    def replace(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute of a module or a class."""
        own = vars(owner)
        if name in own:
            self._changes.callback(setattr, owner, name, own[name])  # a static method stays one
        else:
            self._changes.callback(delattr, owner, name)
        setattr(owner, name, value)

    def ignore_warning(self, message: str) -> None:
        """Filter out warnings whose text begins with a match of a regular expression."""
        warnings.filterwarnings("ignore", message=message)
        filters = cast("list[Any]", warnings.filters)
        added = filters[0]

        def remove() -> None:
            if added in filters:
                filters.remove(added)

        self._changes.callback(remove)

    def on_undo(self, action: Callable[[], object]) -> None:
        """Register another action for when the changes are undone."""
        self._changes.callback(action)

    def undo(self) -> None:
        """Undo all changes, even if one fails; its exception is raised at the end."""
        self._changes.close()
