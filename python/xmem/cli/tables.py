"""The intermediate tables by name: which stage makes each, and which of its columns are worth showing.

A table stays columns until it is cut to the rows that are displayed; only these become Python objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xmem.attribution import CATEGORY_LABELS, PHASE_LABELS, attribute
from xmem.blocks import NEVER, pair_blocks
from xmem.pipeline import run_stages
from xmem.simulation import BlockState, RequestKind
from xmem.source_lines import user_line
from xmem.trace import SPAN_KINDS, Trace


class Names(Protocol):
    """Texts by id."""

    def __getitem__(self, index: int, /) -> str: ...


@dataclass(frozen=True)
class Column:
    """A column of numbers, or of ids into a table of names (-1 = none)."""

    values: npt.NDArray[Any]
    names: Names | None = None

    def cells(self, rows: slice) -> list[object]:
        """The values of some rows as Python objects, ids as their names."""
        numbers: list[Any] = self.values[rows].tolist()
        if self.names is None:
            return numbers
        return [None if number < 0 else self.names[number] for number in numbers]


Columns = dict[str, Column]


@dataclass(frozen=True)
class FirstRows:
    """The beginning of a table, and how long it is."""

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
        "begin_ns": Column(events.begin_ns),
        "duration_ns": Column(events.end_ns - events.begin_ns),
        "thread": Column(events.thread),
        "kind": Column(events.kind, SPAN_KINDS),
        "sequence_number": Column(events.sequence_number),
        "name": Column(events.name, trace.names),
    }


def _operators(trace: Trace) -> Columns:
    """Operators by name: calls, and what the blocks amount to whose innermost operator they are."""
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
        "calls": Column(calls[order]),
        "blocks": Column(block_counts[order]),
        "allocated_bytes": Column(allocated[order]),
        "name": Column(names[order], trace.names),
    }


def _blocks(trace: Trace) -> Columns:
    blocks = pair_blocks(trace)
    attribution = attribute(trace, blocks)
    owned = attribution.operator >= 0
    operator = np.full(len(owned), -1, dtype=np.int32)
    operator[owned] = trace.events.name[attribution.operator[owned]]
    return {
        "size_bytes": Column(blocks.size_bytes),
        "alloc_ns": Column(blocks.alloc_ns),
        "free_ns": Column(np.where(blocks.free_ns == NEVER, -1, blocks.free_ns)),
        "device_type": Column(blocks.device_type),
        "category": Column(attribution.category, CATEGORY_LABELS),
        "iteration": Column(attribution.iteration),
        "phase": Column(attribution.phase, PHASE_LABELS),
        "operator": Column(operator, trace.names),
        "module": Column(attribution.module, attribution.modules),
        "source_line": Column(attribution.source_line, [*map(user_line, attribution.lines)]),
    }


def _sequence(trace: Trace) -> Columns:
    stages = run_stages(trace)
    requests, workload, timeline = stages.requests, stages.workload, stages.unlimited.timeline
    return {
        "time_ns": Column(requests.time_ns),
        "request": Column(requests.kind, [kind.name.lower() for kind in RequestKind]),
        "block": Column(requests.block),
        "size_bytes": Column(requests.size_bytes[requests.block]),
        "allocated_bytes": Column(timeline.allocated_bytes),
        "reserved_bytes": Column(timeline.reserved_bytes),
        "category": Column(workload.category[requests.block], CATEGORY_LABELS),
        "iteration": Column(workload.iteration[requests.block]),
        "phase": Column(workload.phase[requests.block], PHASE_LABELS),
    }


def _segments(trace: Trace) -> Columns:
    """Segments at the end of the run, and what lies in them."""
    state = run_stages(trace).unlimited.state
    segments = len(state.segment_id)
    in_use = state.block_state != BlockState.FREE
    blocks = np.bincount(state.block_segment[in_use], minlength=segments)
    used = np.zeros(segments, np.int64)
    np.add.at(used, state.block_segment[in_use], state.block_bytes[in_use])
    return {
        "segment": Column(state.segment_id),
        "address": Column(state.segment_address),
        "size_bytes": Column(state.segment_bytes),
        "pool": Column(state.segment_pool, ("small", "large")),
        "blocks": Column(blocks),
        "allocated_bytes": Column(used),
    }


_TABLES: dict[str, Callable[[Trace], Columns]] = {
    "events": _events,
    "operators": _operators,
    "blocks": _blocks,
    "sequence": _sequence,
    "segments": _segments,
}
