"""Memory that each source line holds at the peak, and that its forward and backward leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from xmem.breakdown.execution import Delta, Execution
from xmem.estimation.analysis import Analysis
from xmem.records import dataclass
from xmem.text.source_lines import file_and_number
from xmem.trace.attribution import CATEGORY_LABELS, Category, Phase


@dataclass(frozen=True)
class LineBytes:
    """A source line.

    Attributes:
        file: Path as seen from the folder that the script was started in.
        line: Line number, from 1.
        function: Name of the function that it is in; empty where the trace does not record it.
        text: The line itself, without indentation; empty where the trace does not record it.
        category: Bytes at the peak by category, most first.
        forward: Its change in the iteration of the peak, outside of autograd's engine; None where that is
            unknown (``ModuleNode.forward``).
        backward: Change by the backward of its operators.
    """

    file: str
    line: int
    function: str
    text: str
    category: Mapping[str, int]
    forward: Delta | None
    backward: Delta | None

    @property
    def bytes(self) -> int:
        """All of its bytes at the peak."""
        return sum(self.category.values())


def bytes_by_line(analysis: Analysis, execution: Execution | None) -> list[LineBytes]:
    """Return the source lines that hold memory at the peak or change it, most at the peak first.

    Args:
        analysis: The run.
        execution: Execution of the run, from ``execution_of``.
    """
    holders = analysis.holders
    rows = holders.alive_at(analysis.replay.peak_allocated.request)
    rows = rows[holders.line[rows] >= 0]
    held = np.zeros((len(holders.lines), len(Category)), np.int64)
    np.add.at(held, (holders.line[rows], holders.category[rows]), analysis.replay.placement.size_bytes[rows])
    category = {
        name: {CATEGORY_LABELS[value]: int(bytes_[value]) for value in np.argsort(-bytes_) if bytes_[value]}
        for name, bytes_ in zip(holders.lines, held, strict=True)
    }
    changes: dict[bool, dict[str, Delta]] = {False: {}, True: {}}
    if execution is not None:
        in_backward = execution.phase == Phase.BACKWARD
        for backward, by_name in changes.items():
            by_name.update(_changes(execution, in_backward == backward))
    notes = analysis.stages.trace.notes.lines
    names = dict.fromkeys((*category, *changes[False], *changes[True]))
    found = []
    for name in names:
        file, number = file_and_number(name)
        note = notes.get(name, {})
        line = LineBytes(
            file=file,
            line=number,
            function=note.get("function", ""),
            text=note.get("text", ""),
            category=category.get(name, {}),
            forward=None if execution is None else changes[False].get(name, Delta()),
            backward=None if execution is None else changes[True].get(name, Delta()),
        )
        if line.bytes or line.forward or line.backward:
            found.append(line)
    return sorted(found, key=lambda line: (-line.bytes, line.file, line.line))


def _changes(execution: Execution, chosen: NDArray[np.bool_]) -> Iterator[tuple[str, Delta]]:
    """Return the changes of some of the requests, by the line that made them."""
    requests = np.flatnonzero(chosen & (execution.line >= 0))
    changes = np.zeros((len(execution.lines), 2), np.int64)
    change = np.stack([execution.allocated_bytes, execution.reserved_bytes], axis=1)
    np.add.at(changes, execution.line[requests], change[requests])
    for index in np.unique(execution.line[requests]).tolist():
        yield execution.lines[index], Delta(*changes[index].tolist())
