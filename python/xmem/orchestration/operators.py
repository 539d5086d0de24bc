"""Questions about the operators of a trace, answered for whole columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.trace import SPAN_KINDS, Trace

OPERATOR = SPAN_KINDS.index("operator")
HOST = SPAN_KINDS.index("host")
ANNOTATION = SPAN_KINDS.index("annotation")


class OperatorIndex:
    """Names, nesting and input types of the operators of one trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.events = trace.events

    @cached_property
    def parent(self) -> NDArray[np.int32]:
        """Row of the enclosing operator of each row of the EventTable, -1 = none."""
        return _core.operator_parents(self.trace.core)

    def rows_named(
        self, wanted: Callable[[str], bool] | Iterable[str], kind: int = OPERATOR
    ) -> NDArray[np.bool_]:
        """Say of every row of the EventTable whether it is a span of this kind with a wanted name."""
        if not callable(wanted):
            names = frozenset(wanted)
            wanted = names.__contains__
        matches = self.trace.names.matching(wanted)
        found: NDArray[np.bool_] = (self.events.kind == kind) & matches[self.events.name]
        return found

    def enclosing(self, rows: NDArray[np.int32], wanted: NDArray[np.bool_]) -> NDArray[np.int32]:
        """For each operator row, the innermost wanted operator that it is or lies in; -1 where there is none.

        Args:
            rows: int32 rows of the EventTable, -1 = none.
            wanted: bool, one an EventTable row.
        """
        found = rows.astype(np.int32, copy=True)
        open_ = (found >= 0) & ~_take(wanted, found, False)
        while open_.any():
            found[open_] = self.parent[found[open_]]
            open_ &= found >= 0
            open_ &= ~_take(wanted, found, False)
        return found

    def first_input_type(self, rows: NDArray[np.int32]) -> list[str]:
        """The dtype of the first input of each operator as the profiler writes it (``float``), empty =
        unknown.
        """
        import json

        def first(text: str) -> str:
            types = json.loads(text) if text else []
            return types[0] if types and isinstance(types[0], str) else ""

        ids = self.events.input_types[rows].tolist()
        known = {name_id: first(self.trace.names[name_id]) for name_id in set(ids)}
        return [known[name_id] for name_id in ids]


def _take(column: NDArray[np.bool_], rows: NDArray[np.int32], missing: bool) -> NDArray[np.bool_]:
    return np.where(rows >= 0, column[rows], missing)


def covered(
    times: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Say of each time whether one of the spans [begin, end) holds it. Spans may overlap."""
    if len(begins) == 0:
        return np.zeros(len(times), np.bool_)
    order = np.argsort(begins, kind="stable")
    latest_end = np.maximum.accumulate(ends[order])
    before = np.searchsorted(begins[order], times, side="right") - 1
    return np.where(before >= 0, latest_end[before] > times, False)
