"""Makes names printable: what stands in a file must not steer a terminal, or a program that reads our output.

Names come from files that others wrote. ESC, BEL and C1 bytes move the cursor or set the title of a window,
line ends forge lines (GitHub runs lines that begin with ``::``), and marks of direction hide what a line
says. They become visible escapes, as Python writes them.
"""

from __future__ import annotations

import re
from typing import Any, TextIO

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_SURROGATES = "\ud800-\udfff"  # of bytes that are not UTF-8; they cannot be written
_CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_BIDI}{_SURROGATES}]")
_LINE_OR_CONTROL = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029{_BIDI}{_SURROGATES}]")
# On a terminal, what rich itself writes: colours, and the moves of a progress line.
_CONTROL_BUT_RICH = re.compile(
    f"\x1b(?!\\[[0-9;?]*[A-Za-z])|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f{_BIDI}{_SURROGATES}]"
)

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    """Return a text of one or more lines with visible escapes in place of control characters."""
    return text if text.isprintable() else _CONTROL.sub(_escape, text)


def one_line(name: str) -> str:
    """Return a name with visible escapes in place of control characters and line ends."""
    return name if name.isprintable() else _LINE_OR_CONTROL.sub(_escape, name)


def inert(text: str) -> str:
    """Return a text that a spreadsheet does not run as a formula: one that begins like one gets an apostrophe
    in front."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


class PrintableStream:
    """Stands in for ``sys.stdout`` or ``sys.stderr``, and makes everything printable that goes through it.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        if not text.isprintable():
            pattern = _CONTROL_BUT_RICH if self._stream.isatty() else _CONTROL
            self._stream.write(pattern.sub(_escape, text))
        else:
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
