"""Columns of CSV and Parquet files: blocks, the breakdown at the peak, and the memory over time.

Names of columns end with the unit of their values; unknown or inapplicable values are missing, not -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xmem.errors import ConfigError
from xmem.estimation.estimate import Estimate
from xmem.records import dataclass
from xmem.reports.profiles.peak_paths import peak_paths
from xmem.reports.tables import TableName
from xmem.simulation.replay import RequestKind
from xmem.trace.attribution import CATEGORY_LABELS, PHASE_LABELS
from xmem.trace.blocks import NEVER

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis

_PIECE_ROWS = 1 << 17


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Name with the unit, such as ``size_bytes``.
        values: int64, bool, or int32 indices into ``names``.
        names: Texts that the values are indices of; an index of -1 is a missing value.
        missing: Value that stands for a missing one, None where none is missing.
    """

    name: str
    values: NDArray[Any]
    names: Sequence[str] | None = None
    missing: int | None = None

    def slice(self, begin: int, end: int) -> Column:
        """Return some of the rows."""
        return Column(self.name, self.values[begin:end], self.names, self.missing)


Table = list[Column]
"""Columns of equal length."""


def table_of(source: Analysis | Estimate, what: TableName | None = None) -> Table:
    """Return a table of an estimate.

    Args:
        source: An analysis with the data behind the estimate, or the estimate alone, which has no blocks
            and only the curve of the memory over time.
        what: The table; by default the blocks, or the breakdown for an estimate alone.

    Raises:
        ConfigError: The estimate alone lacks the requested data.
    """
    if what is None:
        what = TableName.BREAKDOWN if isinstance(source, Estimate) else TableName.BLOCKS
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
    """Yield the table in pieces of limited length; a table without rows is one empty piece."""
    count = len(table[0].values)
    for begin in range(0, max(count, 1), rows):
        yield [column.slice(begin, begin + rows) for column in table]


def _blocks(analysis: Analysis) -> Table:
    """Return one row per block, in order of allocation."""
    stages, placement = analysis.stages, analysis.replay.placement
    workload, events = stages.workload, stages.trace.events
    holders = analysis.holders
    requests = len(stages.requests)
    tensors = stages.trace.notes.tensors
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
        Column("tensor", workload.tensor, tensors.name),
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
    """Return the names of some rows as indices into a list of those that occur."""
    known = rows >= 0
    used, where = np.unique(name_ids[rows[known]], return_inverse=True)
    indices = np.full(len(rows), -1, np.int32)
    indices[known] = where
    return indices, [names[int(name)] for name in used]


def _timeline(analysis: Analysis) -> Table:
    """Return one row per request: the memory that the allocator holds after it."""
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
    """Return one row for each holder of blocks at the peak."""
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
