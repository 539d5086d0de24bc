"""The user's own source with the bytes that each line holds at the peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from xmem.breakdown.execution import Execution
from xmem.breakdown.lines import LineBytes, bytes_by_line

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis

_MOST_FILES = 12
_MOST_LINES = 300
"""Most lines with bytes to show of one file."""
_AROUND = 4
"""Lines shown before and after one with bytes."""
_MOST_FILE_BYTES = 2 << 20


class SourceLine(NamedTuple):
    """A line of a file; without a number the gap between two that are shown.

    Attributes:
        held: Bytes that it holds at the peak and changes, None where it does neither.
    """

    number: int
    text: str
    held: LineBytes | None = None


class SourceFile(NamedTuple):
    """A file with bytes at the peak."""

    path: str
    bytes: int
    lines: list[SourceLine]


class SourceView(NamedTuple):
    """Files with bytes at the peak.

    Attributes:
        files: The files, most bytes first.
        files_left_out: Number of further files.
        most: Bytes of the largest line, at least 1.
        without_line: Bytes of which the line is unknown.
    """

    files: list[SourceFile]
    files_left_out: int
    most: int
    without_line: int


def source_view_of(analysis: Analysis, execution: Execution | None) -> SourceView:
    """Return the lines that hold bytes at the peak, in their files."""
    found = bytes_by_line(analysis, execution)
    by_file: dict[str, list[LineBytes]] = {}
    for line in found:
        by_file.setdefault(line.file, []).append(line)
    files = sorted(by_file, key=lambda file: -sum(line.bytes for line in by_file[file]))
    return SourceView(
        files=[
            SourceFile(file, sum(line.bytes for line in by_file[file]), _in_context(file, by_file[file]))
            for file in files[:_MOST_FILES]
        ],
        files_left_out=max(len(files) - _MOST_FILES, 0),
        most=max(1, *(line.bytes for line in found)) if found else 1,
        without_line=analysis.estimate.peak_allocated_bytes - sum(line.bytes for line in found),
    )


def _in_context(file: str, found: Sequence[LineBytes]) -> list[SourceLine]:
    """Return the lines with bytes and their neighbours, gaps marked; without the file, those lines alone."""
    hot = {line.line: line for line in found[:_MOST_LINES]}
    texts = _file_lines(file)
    if texts is None or not all(_agrees(line, texts) for line in hot.values()):
        return [SourceLine(number, hot[number].text, hot[number]) for number in sorted(hot)]
    shown: list[SourceLine] = []
    for number in _near(hot, len(texts)):
        if shown and shown[-1].number < number - 1:
            shown.append(SourceLine(0, ""))
        shown.append(SourceLine(number, texts[number - 1], hot.get(number)))
    return shown


def _near(hot: Mapping[int, LineBytes], length: int) -> list[int]:
    near = set[int]()
    for number in hot:
        near.update(range(max(number - _AROUND, 1), min(number + _AROUND, length) + 1))
    return sorted(near)


def _agrees(line: LineBytes, texts: Sequence[str]) -> bool:
    """Return whether the file is unchanged since the run was recorded."""
    if not 1 <= line.line <= len(texts):
        return False
    return not line.text or texts[line.line - 1].strip() == line.text.strip()


def _file_lines(file: str) -> list[str] | None:
    """Return the lines of a Python file below the current folder only, since a trace may name any path."""
    here = Path.cwd()
    try:
        path = (here / file).resolve()
        if path.suffix != ".py" or not path.is_relative_to(here):
            return None
        if not path.is_file():  # a pipe or a device, which may never end
            return None
        if path.stat().st_size > _MOST_FILE_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return None
