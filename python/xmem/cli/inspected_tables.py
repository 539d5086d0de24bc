"""The intermediate tables by name: which stage makes each, and which of its columns are worth showing.

A table stays columns until it is cut to the rows that are displayed; only these become Python objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xmem.estimation.pipeline import run_stages
from xmem.records import dataclass
from xmem.simulation.replay import BlockState, RequestKind
from xmem.text.source_lines import user_line
from xmem.trace.attribution import CATEGORY_LABELS, PHASE_LABELS, attribute
from xmem.trace.blocks import NEVER, pair_blocks
from xmem.trace.trace import SPAN_KINDS, Trace


class NamesOf(Protocol):
    """Texts indexed by id."""

    def __getitem__(self, index: int, /) -> str: ...


@dataclass(frozen=True)
class PrintedColumn:
    """A column of numbers, or of ids into a table of names (-1 = none)."""

    values: npt.NDArray[Any]
    names: NamesOf | None = None

    def cells(self, rows: slice) -> list[object]:
        """Return the values of some rows as Python objects, ids as their names."""
        numbers: list[Any] = self.values[rows].tolist()
        if self.names is None:
            return numbers
        return [None if number < 0 else self.names[number] for number in numbers]


Columns = dict[str, PrintedColumn]


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a table, and its length."""

    rows: list[dict[str, object]]
    rows_total: int


def first_rows(trace: Trace, table: str, limit: int) -> FirstRows:
    """Run the stages up to the named table and take its first rows."""
    columns = _TABLES[table](trace)
    cells = [column.cells(slice(limit)) for column in columns.values()]
    return FirstRows(
        rows=[dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)],
        rows_total=len(next(iter(columns.values())).values),
    )


def _events(trace: Trace) -> Columns:
    events = trace.events
    return {
        "begin_ns": PrintedColumn(events.begin_ns),
        "duration_ns": PrintedColumn(events.end_ns - events.begin_ns),
        "thread": PrintedColumn(events.thread),
        "kind": PrintedColumn(events.kind, SPAN_KINDS),
        "sequence_number": PrintedColumn(events.sequence_number),
        "name": PrintedColumn(events.name, trace.names),
    }


def _operators(trace: Trace) -> Columns:
    """Return operators by name: their calls, and the number and size of blocks they allocated themselves."""
    blocks = pair_blocks(trace)
    attribution = attribute(trace, blocks)
    called = trace.events.name[trace.events.kind == SPAN_KINDS.index("operator")]
    names, calls = np.unique(called, return_counts=True)
    owned = attribution.operator >= 0
    owner = np.searchsorted(names, trace.events.name[attribution.operator[owned]])
    block_counts = np.bincount(owner, minlength=len(names))
    allocated = np.zeros(len(names), dtype=np.int64)
    np.add.at(allocated, owner, blocks.size_bytes[owned])
    order = np.argsort(-allocated, kind="stable")
    return {
        "calls": PrintedColumn(calls[order]),
        "blocks": PrintedColumn(block_counts[order]),
        "allocated_bytes": PrintedColumn(allocated[order]),
        "name": PrintedColumn(names[order], trace.names),
    }


def _blocks(trace: Trace) -> Columns:
    blocks = pair_blocks(trace)
    attribution = attribute(trace, blocks)
    owned = attribution.operator >= 0
    operator = np.full(len(owned), -1, dtype=np.int32)
    operator[owned] = trace.events.name[attribution.operator[owned]]
    return {
        "size_bytes": PrintedColumn(blocks.size_bytes),
        "alloc_ns": PrintedColumn(blocks.alloc_ns),
        "free_ns": PrintedColumn(np.where(blocks.free_ns == NEVER, -1, blocks.free_ns)),
        "device_type": PrintedColumn(blocks.device_type),
        "category": PrintedColumn(attribution.category, CATEGORY_LABELS),
        "iteration": PrintedColumn(attribution.iteration),
        "phase": PrintedColumn(attribution.phase, PHASE_LABELS),
        "operator": PrintedColumn(operator, trace.names),
        "module": PrintedColumn(attribution.module, attribution.modules),
        "source_line": PrintedColumn(attribution.source_line, [*map(user_line, attribution.lines)]),
    }


def _sequence(trace: Trace) -> Columns:
    stages = run_stages(trace)
    requests, workload, timeline = stages.requests, stages.workload, stages.unlimited.timeline
    return {
        "time_ns": PrintedColumn(requests.time_ns),
        "request": PrintedColumn(requests.kind, [kind.name.lower() for kind in RequestKind]),
        "block": PrintedColumn(requests.block),
        "size_bytes": PrintedColumn(requests.size_bytes[requests.block]),
        "allocated_bytes": PrintedColumn(timeline.allocated_bytes),
        "reserved_bytes": PrintedColumn(timeline.reserved_bytes),
        "category": PrintedColumn(workload.category[requests.block], CATEGORY_LABELS),
        "iteration": PrintedColumn(workload.iteration[requests.block]),
        "phase": PrintedColumn(workload.phase[requests.block], PHASE_LABELS),
    }


def _segments(trace: Trace) -> Columns:
    """Return the segments at the end of the run, and their contents."""
    state = run_stages(trace).unlimited.state
    segments = len(state.segment_id)
    in_use = state.block_state != BlockState.FREE
    blocks = np.bincount(state.block_segment[in_use], minlength=segments)
    used = np.zeros(segments, np.int64)
    np.add.at(used, state.block_segment[in_use], state.block_bytes[in_use])
    return {
        "segment": PrintedColumn(state.segment_id),
        "address": PrintedColumn(state.segment_address),
        "size_bytes": PrintedColumn(state.segment_bytes),
        "pool": PrintedColumn(state.segment_pool, ("small", "large")),
        "blocks": PrintedColumn(blocks),
        "allocated_bytes": PrintedColumn(used),
    }


_TABLES: dict[str, Callable[[Trace], Columns]] = {
    "events": _events,
    "operators": _operators,
    "blocks": _blocks,
    "sequence": _sequence,
    "segments": _segments,
}
