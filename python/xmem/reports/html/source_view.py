"""The user's own source with the bytes that each line holds at the peak."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from xmem.breakdown.execution import Execution
from xmem.breakdown.lines import LineBytes, bytes_by_line
from xmem.capture.child.xmem_child.masking import masked
from xmem.printable import one_line

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


def source_view_of(
    analysis: Analysis, execution: Execution | None, *, with_source: bool = True
) -> SourceView:
    """Return the lines that hold bytes at the peak, in their files; their text only where it is wanted."""
    found = bytes_by_line(analysis, execution)
    if not with_source:
        found = [replace(line, text="") for line in found]
    by_file: dict[str, list[LineBytes]] = {}
    for line in found:
        by_file.setdefault(line.file, []).append(line)
    files = sorted(by_file, key=lambda file: -sum(line.bytes for line in by_file[file]))
    return SourceView(
        files=[
            SourceFile(
                file, sum(line.bytes for line in by_file[file]), _lines_of(file, by_file[file], with_source)
            )
            for file in files[:_MOST_FILES]
        ],
        files_left_out=max(len(files) - _MOST_FILES, 0),
        most=max(1, *(line.bytes for line in found)) if found else 1,
        without_line=analysis.estimate.peak_allocated_bytes - sum(line.bytes for line in found),
    )


def _lines_of(file: str, found: Sequence[LineBytes], with_neighbours: bool) -> list[SourceLine]:
    """Return the lines with bytes and their neighbours in the same functions, gaps marked; without the file,
    those lines alone."""
    hot = {line.line: line for line in found[:_MOST_LINES]}
    texts = _file_lines(file) if with_neighbours else None
    if texts is None or not all(_agrees(line, texts) for line in hot.values()):
        return [SourceLine(number, hot[number].text, hot[number]) for number in sorted(hot)]
    shown: list[SourceLine] = []
    for number in _near(hot, texts):
        if shown and shown[-1].number < number - 1:
            shown.append(SourceLine(0, ""))
        shown.append(SourceLine(number, masked(texts[number - 1]), hot.get(number)))
    return shown


def _near(hot: Mapping[int, LineBytes], texts: Sequence[str]) -> list[int]:
    owners = _owners(texts)
    near = set(hot)
    for number in hot:
        around = range(max(number - _AROUND, 1), min(number + _AROUND, len(texts)) + 1)
        near.update(other for other in around if owners and owners[other] == owners[number])
    return sorted(near)


def _owners(texts: Sequence[str]) -> list[int]:
    """Return for each line, from 1, the line at which its innermost function begins, 0 for none; empty for
    text that is not Python."""
    try:
        tree = ast.parse("\n".join(texts))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    owners = [0] * (len(texts) + 1)
    for node in ast.walk(tree):  # outer ones first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            begin = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            end = node.end_lineno or begin
            owners[begin : end + 1] = [node.lineno] * (end + 1 - begin)
    return owners


def _agrees(line: LineBytes, texts: Sequence[str]) -> bool:
    """Return whether the file is unchanged since the run was recorded."""
    if not 1 <= line.line <= len(texts):
        return False
    return not line.text or one_line(masked(texts[line.line - 1]).strip()) == line.text.strip()


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
