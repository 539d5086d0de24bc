"""Questions about the operators of a trace, answered for whole columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.run.inputs import Inputs, InputsByRow, RecordedInputs
from xmem.trace.trace import SPAN_KINDS, Trace

OPERATOR = SPAN_KINDS.index("operator")
HOST = SPAN_KINDS.index("host")
ANNOTATION = SPAN_KINDS.index("annotation")


class OperatorIndex:
    """Names, nesting and inputs of the operators of one trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.events = trace.events
        self._recorded = RecordedInputs(trace)
        self._other: InputsByRow | None = None
        self._types: dict[int, list[str]] = {}
        self._of_kind: dict[int, _ByName] = {}

    def with_inputs(self, inputs: InputsByRow) -> OperatorIndex:
        """Return the same operators, some of them with other inputs."""
        changed = copy(self)
        changed._other = inputs
        return changed

    @cached_property
    def parent(self) -> NDArray[np.int32]:
        """The row of the enclosing operator for each row of the EventTable, -1 = none."""
        return _core.operator_parents(self.trace.core)

    def rows_named(
        self, wanted: Callable[[str], bool] | Iterable[str], kind: int = OPERATOR
    ) -> NDArray[np.bool_]:
        """Return for every row of the EventTable whether it is a span of this kind with a wanted name."""
        if kind not in self._of_kind:
            self._of_kind[kind] = _ByName(self.trace, kind)
        found = np.zeros(len(self.events), np.bool_)
        for rows in self._of_kind[kind].matching(
            wanted if callable(wanted) else frozenset(wanted).__contains__
        ):
            found[rows] = True
        return found

    def enclosing(self, rows: NDArray[np.int32], wanted: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Return for each operator row the innermost wanted operator that it is or lies in; -1 if there is
        none.

        Args:
            rows: int32 rows of the EventTable, -1 = none.
            wanted: bool, one per EventTable row.
        """
        return _core.nearest_wanted(self.parent, wanted, np.asarray(rows, np.int32))

    def in_backward(self, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return for each operator row whether autograd's engine runs it."""
        return self.enclosing(rows, self.evaluations) >= 0

    @cached_property
    def evaluations(self) -> NDArray[np.bool_]:
        """Return for every row of the EventTable whether autograd's engine runs a node there.

        Torch up to 1.9 writes no spans of the engine: in its traces the nodes stand for themselves.
        """
        engine = self.rows_named(lambda name: name.startswith("autograd::engine::evaluate_function"))
        return engine if engine.any() else self.rows_named(_is_node)

    def forward_of(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return for each row in the backward the forward operator that recorded its node; -1 = unknown.

        Both have the node's sequence number. An operator has the number of the next node to be recorded: of
        those with the same number, the last to begin recorded it, or lies in the one that did.
        """
        events = self.events
        nodes = self.enclosing(rows, self.evaluations & (events.sequence_number >= 0))
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
        """Return for each operator row the index of the owner that it is or lies in, -1 = none."""
        marked = np.zeros(len(self.events), np.bool_)
        marked[owners] = True
        index = np.full(len(self.events) + 1, -1, np.int32)
        index[owners] = np.arange(len(owners), dtype=np.int32)
        return index[self.enclosing(rows, marked)]

    def inputs(self, row: int) -> Inputs | None:
        """Return the shapes and plain values that an operator was given; None if the trace does not say."""
        other = None if self._other is None else self._other.of(row)
        return self._recorded.of(row) if other is None else other

    def written_inputs(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return a number for the inputs and dtypes of each operator: equal where the trace writes the same
        of two. Operators whose inputs come from elsewhere have one each."""
        if self._other is not None:
            return np.asarray(rows, np.int64)
        inputs, types = self.events.inputs[rows], self.events.input_types[rows]
        written: NDArray[np.int64] = (inputs + np.int64(1)) * (len(self.trace.names) + 1) + types
        return written

    def input_types(self, row: int) -> list[str]:
        """Return the dtypes of an operator's inputs as the profiler writes them (``float``); empty =
        unknown."""
        name = int(self.events.input_types[row])
        if name not in self._types:
            types = self.trace.names.list_in(name)
            self._types[name] = [each if isinstance(each, str) else "" for each in types]
        return self._types[name]

    def first_input_type(self, rows: NDArray[np.int32]) -> list[str]:
        """Return the dtype of the first input of each operator, empty = unknown."""
        return [next(iter(self.input_types(row)), "") for row in rows.tolist()]


class _ByName:
    """The spans of one kind, sorted by name: policies ask for some fifty sets of names, most of them
    small."""

    def __init__(self, trace: Trace, kind: int) -> None:
        self._rows, counts = _core.rows_by_name(trace.core, kind)
        used = np.flatnonzero(counts)
        self._ends = np.cumsum(counts[used]).tolist()
        self._texts = [trace.names[name] for name in used.tolist()]

    def matching(self, wanted: Callable[[str], bool]) -> Iterator[NDArray[np.int32]]:
        """Return the rows of every wanted name."""
        begin = 0
        for text, end in zip(self._texts, self._ends, strict=True):
            if wanted(text):
                yield self._rows[begin:end]
            begin = end


def _is_node(name: str) -> bool:
    """Return whether an operator's name is that of a node of autograd's graph."""
    is_own = name.startswith("torch::autograd::")
    return is_own or (name.rstrip("0123456789").endswith("Backward") and not name.startswith("aten::"))


def covered(
    times: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return for each time whether one of the spans [begin, end) holds it. Spans may overlap."""
    if len(begins) == 0:
        return np.zeros(len(times), np.bool_)
    order = np.argsort(begins, kind="stable")
    latest_end = np.maximum.accumulate(ends[order])
    before = np.searchsorted(begins[order], times, side="right") - 1
    return np.where(before >= 0, latest_end[before] > times, False)
