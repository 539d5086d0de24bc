"""Source lines as a trace names them: the user's, and below it that of an installed package.

A capture names a call into torch ``train.py:42``, and ``train.py:42 < transformers/models/bert.py:341`` where
the user's line reached torch through a package; the first part is empty where no code of the user's ran.
"""

from __future__ import annotations

from xmem.text.numbers import whole_number

SEPARATOR = " < "


def user_line(name: str) -> str:
    """Return ``PATH:LINE`` of the user's own code, or of the package if no frame is the user's."""
    line, _, inner = name.partition(SEPARATOR)
    return line or inner


def package_line(name: str) -> str:
    """Return ``PATH:LINE`` of the innermost code outside torch, a package's or else the user's."""
    line, _, inner = name.partition(SEPARATOR)
    return inner or line


def file_and_number(line: str) -> tuple[str, int]:
    """Return ``PATH`` and ``LINE`` of a source line; number 0 if there is none."""
    path, _, text = line.rpartition(":")
    number = whole_number(text)
    return (line, 0) if number is None else (path, number)
