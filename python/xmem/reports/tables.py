"""What CSV and Parquet files hold: blocks, the breakdown at the peak, and the memory over time, as columns.

Names of columns end with the unit of their values; what is not known or does not apply is missing, not -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xmem.attribution import CATEGORY_LABELS, PHASE_LABELS
from xmem.blocks import NEVER
from xmem.errors import ConfigError
from xmem.estimate_result import Estimate
from xmem.reports.peak_paths import peak_paths
from xmem.simulation import RequestKind

if TYPE_CHECKING:
    from xmem.pipeline import Analysis

_PIECE_ROWS = 1 << 17


class TableName(StrEnum):
    """The tables there are."""

    BLOCKS = "blocks"
    BREAKDOWN = "breakdown"
    TIMELINE = "timeline"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: With the unit, such as ``size_bytes``.
        values: int64, bool, or int32 indices into ``names``.
        names: Texts that the values are indices of; an index of -1 is a missing value.
        missing: Value that stands for a missing one, None where none is missing.
    """

    name: str
    values: NDArray[Any]
    names: Sequence[str] | None = None
    missing: int | None = None

    def slice(self, begin: int, end: int) -> Column:
        """Some of the rows."""
        return Column(self.name, self.values[begin:end], self.names, self.missing)


Table = list[Column]
"""Columns of equal length."""


def table_of(source: Analysis | Estimate, what: TableName) -> Table:
    """A table of an estimate.

    Args:
        source: With all that the estimate rests on; the estimate alone has no blocks, and of the memory over
            time only its curve.
        what: Which table.

    Raises:
        ConfigError: The estimate alone does not have what is asked for.
    """
    if what is TableName.BREAKDOWN:
        return _breakdown(source)
    if isinstance(source, Estimate):
        if what is TableName.TIMELINE:
            return _curve(source)
        raise ConfigError(
            f"--what {what} needs a trace: an estimate does not hold its blocks",
            "pass the trace that it was made from",
        )
    return _blocks(source) if what is TableName.BLOCKS else _timeline(source)


def pieces(table: Table, rows: int = _PIECE_ROWS) -> Iterator[Table]:
    """The table in pieces of at most so many rows; one without rows is one empty piece."""
    count = len(table[0].values)
    for begin in range(0, max(count, 1), rows):
        yield [column.slice(begin, begin + rows) for column in table]


def _blocks(analysis: Analysis) -> Table:
    """One row a block, in order of allocation."""
    stages, placement = analysis.stages, analysis.replay.placement
    workload, events = stages.workload, stages.trace.events
    holders = analysis.holders
    requests = len(stages.requests)
    tensors = (stages.trace.metadata or {}).get("tensors", {"name": []})
    innermost, operators = _named(events.name, workload.operator, stages.trace.names)
    return [
        Column("block", np.arange(len(workload))),
        Column("requested_bytes", workload.size_bytes),
        Column("held_bytes", placement.size_bytes, missing=-1),
        Column("alloc_time_ns", workload.alloc_ns),
        Column("free_time_ns", workload.free_ns, missing=NEVER),
        Column("alloc_request", holders.alloc_request, missing=requests),
        Column("free_request", holders.free_request, missing=requests),
        Column("iteration", workload.iteration, missing=-1),
        Column("phase", holders.phase, PHASE_LABELS),
        Column("category", holders.category, CATEGORY_LABELS),
        Column("persistent", holders.persistent),
        Column("module", holders.module, holders.modules),
        Column("tensor", workload.tensor, tensors["name"]),
        Column("operator", holders.operator, holders.operators),
        Column("innermost_operator", innermost, operators),
        Column("source_line", holders.line, holders.lines),
        Column("stream", workload.stream),
        Column("address", placement.address, missing=-1),
        Column("segment", placement.segment, missing=-1),
    ]


def _named(
    name_ids: NDArray[np.int32], rows: NDArray[np.int32], names: Any
) -> tuple[NDArray[np.int32], list[str]]:
    """The names of some rows as indices into a list of those that occur."""
    known = rows >= 0
    used, where = np.unique(name_ids[rows[known]], return_inverse=True)
    indices = np.full(len(rows), -1, np.int32)
    indices[known] = where
    return indices, [names[int(name)] for name in used]


def _timeline(analysis: Analysis) -> Table:
    """One row a request: what the allocator holds after it."""
    requests, gauges = analysis.stages.requests, analysis.replay.timeline
    count = len(gauges.allocated_bytes)
    kind = requests.kind[:count]
    of_block = np.isin(kind, (RequestKind.ALLOC, RequestKind.FREE, RequestKind.RECORD_STREAM))
    block = np.where(of_block, requests.block[:count], -1)
    return [
        Column("request", np.arange(count)),
        Column("time_ns", requests.time_ns[:count]),
        Column("kind", kind, [kind.name.lower() for kind in RequestKind]),
        Column("block", block, missing=-1),
        Column("allocated_bytes", gauges.allocated_bytes),
        Column("active_bytes", gauges.active_bytes),
        Column("reserved_bytes", gauges.reserved_bytes),
        Column("requested_bytes", gauges.requested_bytes),
    ]


def _curve(estimate: Estimate) -> Table:
    curve = estimate.curve
    if curve is None:
        raise ConfigError(
            "--what timeline needs a curve, which the estimate of an earlier version does not have",
            "write it again with this version, or pass the trace",
        )
    return [
        Column("time_ns", np.array(curve.time_ns, np.int64)),
        Column("allocated_bytes", np.array(curve.allocated_bytes, np.int64)),
        Column("reserved_bytes", np.array(curve.reserved_bytes, np.int64)),
    ]


def _breakdown(source: Analysis | Estimate) -> Table:
    """One row for all blocks at the peak that have the same holder."""
    paths = peak_paths(source)
    return [
        _texts("category", [path.category for path in paths]),
        _texts("phase", [path.phase for path in paths]),
        Column("persistent", np.array([path.persistent for path in paths], np.bool_)),
        _texts("module", [path.module for path in paths]),
        _texts("operator", [path.operator for path in paths]),
        _texts("source_line", [path.source_line for path in paths]),
        Column("rounded_bytes", np.array([path.bytes for path in paths], np.int64)),
        Column("slack_bytes", np.array([path.slack_bytes for path in paths], np.int64)),
        Column("blocks", np.array([path.blocks for path in paths], np.int64)),
    ]


def _texts(name: str, texts: Sequence[str | None]) -> Column:
    ids: dict[str, int] = {}
    values = [-1 if text is None else ids.setdefault(text, len(ids)) for text in texts]
    return Column(name, np.array(values, np.int32), list(ids))
