"""Lines of the script that call a module or step the optimizer."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xmem.run.operators import ANNOTATION
from xmem.text.source_lines import file_and_number, user_line
from xmem.trace.trace import SPAN_KINDS
from xmem.whatif.changed_run import ChangedRun
from xmem.whatif.module_calls import module_calls

_LINE = SPAN_KINDS.index("line")


class Lines:
    """The lines of a recorded run."""

    def __init__(self, run: ChangedRun) -> None:
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
        """Return the line that calls a module, None where the trace does not record it.

        A capture notes the user's innermost lines. A library module runs none of its own, so all lines within
        its call are the line that calls it.
        """
        lines = _of_user(self._within(self.calls_of_modules[path]))
        return lines.pop() if len(lines) == 1 else None

    def beside_call(self, path: str) -> tuple[str, str] | None:
        """Return the nearest line to the call of a module with lines of its own, in the module that calls it.

        Returns:
            ``below`` and the line before the call, or ``above`` and the one after it; it may also be that of
            the call. None where no module around the call runs a line itself.
        """
        events, call = self._events, self.calls_of_modules[path]
        around = self._calls[self._holds(self._calls, call)]
        for caller in around[around != call][::-1].tolist():  # the innermost first
            own = self._own_lines(caller)
            before = own[events.end_ns[own] <= events.begin_ns[call]]
            after = own[events.begin_ns[own] >= events.end_ns[call]]
            for word, rows in (("below", before[::-1]), ("above", after)):
                for row in rows.tolist():
                    line = user_line(self._names[int(events.name[row])])
                    if line:
                        return word, line
        return None

    def _own_lines(self, caller: int) -> NDArray[np.intp]:
        """Return rows of lines in a module's call, without those in calls of modules that run their own."""
        own = self._inside(self._line_rows, caller)
        for called in self._inside(self._calls, caller).tolist():
            of_called = self._inside(own, called)
            if called != caller and len(_of_user(self._named(of_called))) > 1:
                own = np.setdiff1d(own, of_called)
        return own

    def is_of_package(self, path: str) -> bool:
        """Return whether a module's call runs code of an installed package other than torch."""
        return any(user_line(line) != line for line in self._within(self.calls_of_modules[path]))

    def of_annotation(self, prefix: str) -> str | None:
        """Return the line of the first annotation whose name has this prefix."""
        named = self._run.recorded.operators.rows_named(lambda name: name.startswith(prefix), ANNOTATION)
        for row in np.flatnonzero(named).tolist():
            lines = _of_user(self._within(row))
            if lines:
                return min(lines, key=file_and_number)
        return None

    def _within(self, row: int) -> set[str]:
        return self._named(self._inside(self._line_rows, row))

    def _named(self, rows: NDArray[np.intp]) -> set[str]:
        return {self._names[int(name)] for name in np.unique(self._events.name[rows])}

    def _inside(self, rows: NDArray[np.intp], outer: int) -> NDArray[np.intp]:
        """Return the spans that begin and end within another one on its thread."""
        events = self._events
        lasts = (events.begin_ns[rows] >= events.begin_ns[outer]) & (
            events.end_ns[rows] <= events.end_ns[outer]
        )
        found: NDArray[np.intp] = rows[lasts & (events.thread[rows] == events.thread[outer])]
        return found

    def _holds(self, rows: NDArray[np.intp], inner: int) -> NDArray[np.bool_]:
        """Return for each span whether another one on its thread begins and ends within it."""
        events = self._events
        lasts = (events.begin_ns[rows] <= events.begin_ns[inner]) & (
            events.end_ns[rows] >= events.end_ns[inner]
        )
        held: NDArray[np.bool_] = lasts & (events.thread[rows] == events.thread[inner])
        return held

    @cached_property
    def _calls(self) -> NDArray[np.intp]:
        """Rows of the calls of modules, in the order of the EventTable."""
        return np.array([call.row for call in module_calls(self._run.recorded)], np.intp)

    @cached_property
    def _line_rows(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._events.kind == _LINE)


def _of_user(lines: set[str]) -> set[str]:
    return {user_line(line) for line in lines} - {""}
