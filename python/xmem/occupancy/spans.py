"""Which span of a thread is open at an instant: the innermost of those that nest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.records import dataclass
from xmem.trace.trace import EventTable

NONE = -1


@dataclass(frozen=True)
class Nesting:
    """Spans of one kind, in the order of the event table: by thread, begin, longest first.

    Attributes:
        row: int64, rows of the event table.
        thread: int32.
        begin_ns: int64.
        end_ns: int64, half-open.
        parent: int64, place in this table of the span around it, -1 = none.
        rows: Length of the event table.
    """

    row: NDArray[np.int64]
    thread: NDArray[np.int32]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    parent: NDArray[np.int64]
    rows: int

    def thread_of(self, time_ns: NDArray[np.int64]) -> int:
        """Return the thread that has a span open at most of the instants; -1 if none has any.

        Threads are numbered in a trace, so that a native id says nothing. What launches kernels is inside of
        operators, and threads of a program rarely are at the same time.
        """
        threads = np.unique(self.thread)
        counts = [int((self.innermost(time_ns, int(thread)) != NONE).sum()) for thread in threads]
        return int(threads[int(np.argmax(counts))]) if counts and max(counts) > 0 else NONE

    def innermost(self, time_ns: NDArray[np.int64], thread: int) -> NDArray[np.int64]:
        """Return the row of the innermost span of a thread that is open at each instant, -1 = none."""
        first, last = np.searchsorted(self.thread, [thread, thread + 1])
        at = first + np.searchsorted(self.begin_ns[first:last], time_ns, "right") - 1
        at = np.where(at < first, NONE, at)
        while True:
            over = (at != NONE) & (self.end_ns[at] <= time_ns)
            if not over.any():
                return np.where(at == NONE, NONE, self.row[at])
            at[over] = self.parent[at[over]]

    def outward(self, rows: NDArray[np.int64], wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the innermost span at or around each row that is wanted, -1 = none.

        Args:
            rows: Rows of the event table, -1 = none.
            wanted: By row of the event table.
        """
        place = np.full(self.rows, NONE, np.int64)
        place[self.row] = np.arange(len(self.row))
        at = np.where(rows == NONE, NONE, place[rows])
        while True:
            missing = (at != NONE) & ~wanted[self.row[at]]
            if not missing.any():
                return np.where(at == NONE, NONE, self.row[at])
            at[missing] = self.parent[at[missing]]


def nesting_of(events: EventTable, rows: NDArray[np.int64]) -> Nesting:
    """Return how some spans of a trace nest.

    Args:
        events: All spans.
        rows: Those that are meant, ascending.
    """
    thread, begin, end = events.thread[rows], events.begin_ns[rows], events.end_ns[rows]
    parent = np.full(len(rows), NONE, np.int64)
    open_spans: list[int] = []
    ends, threads = end.tolist(), thread.tolist()
    for place, start in enumerate(begin.tolist()):
        while open_spans and (ends[open_spans[-1]] <= start or threads[open_spans[-1]] != threads[place]):
            open_spans.pop()
        if open_spans:
            parent[place] = open_spans[-1]
        open_spans.append(place)
    return Nesting(rows, thread, begin, end, parent, len(events))
