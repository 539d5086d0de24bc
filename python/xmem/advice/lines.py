"""Which line of the script does what: where a module is called, where the optimizer steps."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xmem.orchestration.operators import ANNOTATION
from xmem.source_lines import file_and_number, user_line
from xmem.trace import SPAN_KINDS
from xmem.whatif.module_calls import module_calls
from xmem.whatif.run import Run

_LINE = SPAN_KINDS.index("line")


class Lines:
    """The lines of a recorded run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._events = run.recorded.trace.events
        self._names = run.recorded.trace.names

    @cached_property
    def calls_of_modules(self) -> dict[str, int]:
        """Paths of the modules called, with the row of the EventTable of the first call."""
        found: dict[str, int] = {}
        for call in module_calls(self._run.recorded):
            found.setdefault(call.path, call.row)
        return found

    def of_call(self, path: str) -> str | None:
        """The line that calls a module, None where the trace does not tell.

        A capture notes the user's innermost lines. A module of a library runs none of its own, so the lines
        within its call are all the one that calls it.
        """
        lines = _of_user(self._within(self.calls_of_modules[path]))
        return lines.pop() if len(lines) == 1 else None

    def is_of_package(self, path: str) -> bool:
        """Whether the code of an installed package, other than torch, runs in a module's call."""
        return any(user_line(line) != line for line in self._within(self.calls_of_modules[path]))

    def of_annotation(self, prefix: str) -> str | None:
        """The line at which the first annotation with a name of this beginning stands."""
        named = self._run.recorded.operators.rows_named(lambda name: name.startswith(prefix), ANNOTATION)
        for row in np.flatnonzero(named).tolist():
            lines = _of_user(self._within(row))
            if lines:
                return min(lines, key=file_and_number)
        return None

    def _within(self, row: int) -> set[str]:
        events, rows = self._events, self._line_rows
        inside = (events.begin_ns[rows] >= events.begin_ns[row]) & (events.end_ns[rows] <= events.end_ns[row])
        ids = np.unique(events.name[rows[inside & (events.thread[rows] == events.thread[row])]])
        return {self._names[int(name)] for name in ids}

    @cached_property
    def _line_rows(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._events.kind == _LINE)


def _of_user(lines: set[str]) -> set[str]:
    return {user_line(line) for line in lines} - {""}
