"""Whole numbers that people and files write."""

from __future__ import annotations

_MOST_DIGITS = 18  # of 64 bits


def whole_number(text: str) -> int | None:
    """Return the number that a text is, from 0 to 10^18 and in the digits 0 to 9; None for any other text.

    ``str.isdecimal`` is true of other scripts' digits too, and of more digits than Python's ``int`` takes.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None
