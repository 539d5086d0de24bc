"""Known names near one that was mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], count: int = 1, least: float = 0.6) -> list[str]:
    """Return known names that are like a name, the most similar first.

    Args:
        name: The name as typed.
        known: The names that there are.
        count: How many to return at most.
        least: Least similarity, from 0 (any name) to 1 (the name itself), as ``difflib`` defines it.
    """
    return difflib.get_close_matches(name, list(known), n=count, cutoff=least)
