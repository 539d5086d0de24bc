"""Questions about the operators of a trace, answered for whole columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.trace import SPAN_KINDS, Trace

OPERATOR = SPAN_KINDS.index("operator")
HOST = SPAN_KINDS.index("host")
ANNOTATION = SPAN_KINDS.index("annotation")


class Inputs(NamedTuple):
    """What an operator was given, by position.

    Attributes:
        shapes: Of tensors, empty for all else and for what the profiler does not look into.
        strides: The same of their strides, in elements.
        values: Of numbers and flags, as Python writes them; empty for tensors.
    """

    shapes: list[Any]
    strides: list[Any]
    values: list[str]

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of a tensor; empty where there is none."""
        return _integers(self.shapes, position)

    def stride(self, position: int) -> tuple[int, ...]:
        """The strides of a tensor; empty where there is none."""
        return _integers(self.strides, position)

    def integer(self, position: int) -> int | None:
        """A whole number, None where there is none."""
        text = self.values[position] if position < len(self.values) else ""
        return int(text) if isinstance(text, str) and text.lstrip("-").isdigit() else None


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

    def in_backward(self, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Say of each operator row whether autograd's engine runs it."""
        return self.enclosing(rows, self._evaluations) >= 0

    @cached_property
    def _evaluations(self) -> NDArray[np.bool_]:
        return self.rows_named(lambda name: name.startswith("autograd::engine::evaluate_function"))

    def forward_of(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """For each row in the backward, the forward operator that recorded its node; -1 = none is known.

        Both bear the node's sequence number. An operator bears the number of the next node to be recorded: of
        those with one number the last to begin recorded it, or lies in the one that did.
        """
        events = self.events
        nodes = self.enclosing(rows, self._evaluations & (events.sequence_number >= 0))
        numbered = np.flatnonzero((events.kind == OPERATOR) & (events.sequence_number >= 0)).astype(np.int32)
        numbered = numbered[~self.in_backward(numbered)]
        if len(numbered) == 0:
            return np.full(len(rows), -1, np.int32)
        numbers = events.sequence_number[numbered]
        order = np.lexsort((events.begin_ns[numbered], numbers))
        numbered, numbers = numbered[order], numbers[order]
        wanted = np.where(nodes >= 0, events.sequence_number[nodes], -1)
        at = np.maximum(np.searchsorted(numbers, wanted, side="right") - 1, 0)
        found = np.where((wanted >= 0) & (numbers[at] == wanted), numbered[at], -1)
        above = np.where(found >= 0, self.parent[found], -1)
        while (climbs := (above >= 0) & (events.sequence_number[above] == wanted)).any():
            found = np.where(climbs, above, found)
            above = np.where(climbs, self.parent[found], -1)
        return found.astype(np.int32)

    def rows_owned_by(self, rows: NDArray[np.int32], owners: NDArray[np.int32]) -> NDArray[np.int32]:
        """For each operator row, which of the owners it is or lies in: the owner's index, -1 = none."""
        marked = np.zeros(len(self.events), np.bool_)
        marked[owners] = True
        index = np.full(len(self.events) + 1, -1, np.int32)
        index[owners] = np.arange(len(owners), dtype=np.int32)
        return index[self.enclosing(rows, marked)]

    def inputs(self, row: int) -> Inputs | None:
        """Shapes and plain values that an operator was given; None where the trace does not say."""
        import json

        if self.events.inputs[row] < 0:
            return None
        texts = json.loads(self.trace.names[int(self.events.inputs[row])])
        return Inputs(*(text if isinstance(text, list) else [] for text in texts))

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


def _integers(lists: list[Any], position: int) -> tuple[int, ...]:
    found = lists[position] if position < len(lists) else []
    is_plain = isinstance(found, list) and all(isinstance(number, int) for number in found)
    return tuple(found) if is_plain else ()


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
