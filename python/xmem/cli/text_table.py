"""Rows as aligned plain text: for eyes, grep and cut alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def format_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Align rows under a header; numbers to the right, text to the left, no line is cut.

    Args:
        rows: Rows with the same keys in the same order, at least one.
    """
    names = list(rows[0])
    cells = [[_cell(row[name]) for name in names] for row in rows]
    widths = [max(len(line[column]) for line in [names, *cells]) for column in range(len(names))]
    right = [all(isinstance(row[name], int) for row in rows) for name in names]

    def align(line: Sequence[str]) -> str:
        aligned = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        )
        return "  ".join(aligned).rstrip()

    return "\n".join(align(line) for line in [names, *cells])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
