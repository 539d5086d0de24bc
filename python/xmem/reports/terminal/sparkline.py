"""A curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_LEVELS = " ▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = " .:-=+*#@"


def sparkline(values: Sequence[int], most: int, width: int, *, plain: bool = False) -> str:
    """Draw non-negative values, at most ``width`` characters wide; each shows the highest of its stretch.

    Args:
        values: The values in order.
        most: The value that reaches the top.
        width: Width in characters, at least 1.
        plain: Use ASCII.
    """
    levels = _PLAIN_LEVELS if plain else _LEVELS
    count = min(width, len(values))
    edges = [len(values) * column // count for column in range(count + 1)] if count else []
    highest = [max(values[begin:end]) for begin, end in pairwise(edges)]
    top = len(levels) - 1
    # Rounded up: nothing but zero is shown as nothing.
    return "".join(
        levels[min(max(-(-value * top // most), 0), top)] if most > 0 else levels[0] for value in highest
    )
