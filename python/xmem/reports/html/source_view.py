"""The user's own source with the bytes that each line holds at the peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xmem.attribution import Phase
from xmem.source_lines import file_and_number

if TYPE_CHECKING:
    from xmem.holders import Holders
    from xmem.pipeline import Analysis

_MOST_FILES = 12
_MOST_LINES = 300
"""Lines with bytes of one file."""
_AROUND = 4
"""Lines shown before and after one with bytes."""
_MOST_FILE_BYTES = 2 << 20


@dataclass(frozen=True)
class SourceLine:
    """A line of a file, or the gap between two that are shown.

    Attributes:
        bytes: At the peak, of blocks made by the line; the sum of the next three.
    """

    number: int
    text: str
    bytes: int = 0
    forward: int = 0
    backward: int = 0
    other: int = 0
    gap: bool = False


@dataclass(frozen=True)
class SourceFile:
    """A file with bytes, most of them first among its kind."""

    path: str
    bytes: int
    lines: list[SourceLine]


@dataclass(frozen=True)
class SourceView:
    """Files with bytes at the peak.

    Attributes:
        files: Those with most bytes first.
        most: Bytes of the largest line, at least 1.
        without_line: Bytes that no line is known of.
    """

    files: list[SourceFile]
    most: int
    without_line: int


def source_view_of(analysis: Analysis, holders: Holders) -> SourceView:
    """Sum what lives at the peak by line, and show the lines in their files."""
    alive = holders.alive_at(analysis.replay.peak_allocated.request)
    line, size = holders.line[alive], analysis.replay.placement.size_bytes[alive].astype(np.float64)
    count = len(holders.lines)
    known = line >= 0
    by_phase = {
        phase: np.bincount(line[known & chosen], size[known & chosen], count).astype(np.int64)
        for phase, chosen in (
            (Phase.FORWARD, holders.phase[alive] == Phase.FORWARD),
            (Phase.BACKWARD, holders.phase[alive] == Phase.BACKWARD),
        )
    }
    total = np.bincount(line[known], size[known], count).astype(np.int64)

    hot: dict[str, dict[int, SourceLine]] = {}
    noted: Mapping[str, Any] = (analysis.stages.trace.metadata or {}).get("lines") or {}
    for row in np.flatnonzero(total).tolist():
        path, number = file_and_number(holders.lines[row])
        forward, backward = int(by_phase[Phase.FORWARD][row]), int(by_phase[Phase.BACKWARD][row])
        hot.setdefault(path, {})[number] = SourceLine(
            number=number,
            text=_noted_text(noted, holders.lines[row]),
            bytes=int(total[row]),
            forward=forward,
            backward=backward,
            other=int(total[row]) - forward - backward,
        )
    files = sorted(
        (
            SourceFile(path, sum(found.bytes for found in lines.values()), _in_context(path, lines))
            for path, lines in hot.items()
        ),
        key=lambda file: -file.bytes,
    )
    return SourceView(files[:_MOST_FILES], max(int(total.max(initial=0)), 1), int(size[~known].sum()))


def _noted_text(noted: Mapping[str, Any], line: str) -> str:
    entry = noted.get(line)
    text = entry.get("text") if isinstance(entry, Mapping) else None
    return text if isinstance(text, str) else ""


def _in_context(path: str, hot: Mapping[int, SourceLine]) -> list[SourceLine]:
    """The lines with bytes among their neighbours, gaps marked; without the file, those lines alone."""
    if len(hot) > _MOST_LINES:
        largest = sorted(hot.values(), key=lambda line: -line.bytes)[:_MOST_LINES]
        hot = {line.number: line for line in largest}
    texts = _file_lines(path)
    if texts is None or any(not _agrees(line, texts) for line in hot.values()):
        return [hot[number] for number in sorted(hot)]
    near = sorted(
        {
            number
            for line in hot
            for number in range(max(line - _AROUND, 1), min(line + _AROUND, len(texts)) + 1)
        }
    )
    shown: list[SourceLine] = []
    for number in near:
        if shown and shown[-1].number < number - 1:
            shown.append(SourceLine(number - 1, "", gap=True))
        text = texts[number - 1]
        line = hot.get(number)
        shown.append(
            SourceLine(number, text)
            if line is None
            else SourceLine(number, text, line.bytes, line.forward, line.backward, line.other)
        )
    return shown


def _agrees(line: SourceLine, texts: list[str]) -> bool:
    """Whether the file still says what it said when the run was recorded."""
    if line.number > len(texts):
        return False
    return not line.text or texts[line.number - 1].strip() == line.text.strip()


def _file_lines(path: str) -> list[str] | None:
    """Lines of a Python file below the current folder; of no other: a trace may name any path."""
    here = Path.cwd()
    try:
        file = (here / path).resolve()
        if file.suffix != ".py" or not file.is_relative_to(here) or file.stat().st_size > _MOST_FILE_BYTES:
            return None
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return None
