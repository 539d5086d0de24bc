"""The blocks that a GPU would hold: the table that policies transform and the simulation replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from xmem.records import dataclass
from xmem.trace.attribution import Attribution, Category, Phase
from xmem.trace.blocks import CPU, BlockTable

MADE_BY_POLICY = -1
"""Value of ``Workload.block`` for memory that the trace does not hold."""

NOT_RESTORED = -1
"""Value of ``Workload.restores`` of nearly all blocks."""


_DTYPES = {
    "size_bytes": np.int64,
    "stream": np.int64,
    "alloc_ns": np.int64,
    "free_ns": np.int64,
    "category": np.uint8,
    "phase": np.uint8,
    "flags": np.uint8,
    "host": np.bool_,
    "waits": np.bool_,
}
"""Of columns that are not int32."""


@dataclass(frozen=True)
class Workload:
    """Device memory over the run, one row per block, in order of allocation.

    Attributes:
        block: int32, row of the BlockTable that it comes from, -1 = added by a policy.
        size_bytes: int64, as requested from the allocator.
        stream: int64, the CUDA stream it is allocated on; 0 where that is not known.
        alloc_ns: int64 nanoseconds.
        free_ns: int64 nanoseconds, ``blocks.NEVER`` = alive at the end.
        category: uint8, an ``attribution.Category``.
        phase: uint8, an ``attribution.Phase``.
        iteration: int32, -1 = outside of all.
        operator: int32, innermost operator, row of the EventTable, -1 = none.
        root_operator: int32, outermost operator, row of the EventTable, -1 = none.
        module: int32, index into ``Attribution.modules``, -1 = none.
        source_line: int32, index into ``Attribution.lines``, -1 = none.
        tensor: int32, row of the capture's named tensors, -1 = none.
        flags: uint8, of the BlockTable.
        host: bool, host memory on a machine with a GPU.
        choice: int32, row of ``choices``, -1 = the block has one size.
        mempool: int32, the private pool that it is allocated in, 0 for the default pool.
        waits: bool, its free waits for other streams that use it.
        restores: int32, row of the BlockTable whose place it takes when a private pool is put back to a
            checkpoint, ``simulation.FREE_AT_CHECKPOINT``, or ``NOT_RESTORED``.
        choices: Sizes in bytes that a block tries in turn, the first of them its ``size_bytes``; blocks of
            one row remember what fitted (``simulation.Alternatives``).
    """

    block: NDArray[np.int32]
    size_bytes: NDArray[np.int64]
    stream: NDArray[np.int64]
    alloc_ns: NDArray[np.int64]
    free_ns: NDArray[np.int64]
    category: NDArray[np.uint8]
    phase: NDArray[np.uint8]
    iteration: NDArray[np.int32]
    operator: NDArray[np.int32]
    root_operator: NDArray[np.int32]
    module: NDArray[np.int32]
    source_line: NDArray[np.int32]
    tensor: NDArray[np.int32]
    flags: NDArray[np.uint8]
    host: NDArray[np.bool_]
    choice: NDArray[np.int32]
    mempool: NDArray[np.int32]
    waits: NDArray[np.bool_]
    restores: NDArray[np.int32]
    choices: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.block)

    def select(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Workload:
        """Return the workload of some of the rows, in their order; itself where a mask keeps all."""
        if rows.dtype == np.bool_:
            if rows.all():
                return self
            rows = np.flatnonzero(rows)  # a mask would be searched again for each column
        columns = {name: _taken(getattr(self, name), rows) for name in COLUMNS}
        return Workload(**columns, choices=self.choices)

    def with_columns(self, **columns: Any) -> Workload:
        """Return the same rows with some columns replaced."""
        return replace(self, **columns)

    def with_added(
        self,
        *,
        size_bytes: int,
        alloc_ns: int,
        free_ns: int,
        category: Category,
        phase: Phase,
        iteration: int,
        operator: int = -1,
        root_operator: int = -1,
        module: int = -1,
        source_line: int = -1,
        tensor: int = -1,
    ) -> Workload:
        """Add one block at its place by time of allocation (before blocks of the same time)."""
        row = {
            "size_bytes": size_bytes,
            "alloc_ns": alloc_ns,
            "free_ns": free_ns,
            "category": category,
            "phase": phase,
            "iteration": iteration,
            "operator": operator,
            "root_operator": root_operator,
            "module": module,
            "source_line": source_line,
            "tensor": tensor,
        }
        added = made_by_policy(1, **{name: np.array([value]) for name, value in row.items()})
        return concatenated([added, self])


COLUMNS = tuple(field.name for field in fields(Workload) if field.name != "choices")
"""What a workload has a value of for each block."""


def made_by_policy(count: int, **columns: NDArray[Any]) -> Workload:
    """Make blocks that the trace does not hold; columns that are not given mean that nothing is known.

    Args:
        count: Number of blocks.
        columns: Columns of :class:`Workload`, one entry per block.
    """
    unknown = {
        "block": MADE_BY_POLICY,
        "stream": 0,
        "category": Category.TEMPORARY,
        "phase": Phase.OTHER,
        "flags": 0,
        "host": False,
        "mempool": 0,
        "waits": False,
    }
    filled: dict[str, Any] = {
        name: np.asarray(columns[name]).astype(_DTYPES.get(name, np.int32))
        if name in columns
        else _constant(unknown.get(name, -1), _DTYPES.get(name, np.int32), count)
        for name in COLUMNS
    }
    return Workload(**filled)


def made_like(rows: Workload, **columns: Any) -> Workload:
    """Make blocks that the trace does not hold, each like a row: made by its operator in its module, phase
    and iteration, on its stream and in its pool.

    Args:
        rows: One for each block.
        columns: Columns of :class:`Workload` that differ from the rows, one entry per block or one for all.
    """
    own = {
        "block": MADE_BY_POLICY,
        "tensor": -1,
        "flags": 0,
        "host": False,
        "choice": -1,
        "waits": False,
        "restores": NOT_RESTORED,
        **columns,
    }
    filled: dict[str, Any] = {
        name: _constant(value, _DTYPES.get(name, np.int32), len(rows)) for name, value in own.items()
    }
    return replace(rows, **filled, choices=())


def concatenated(parts: Sequence[Workload]) -> Workload:
    """Return the blocks of all parts in order of allocation; at equal times, the earlier part's first.

    At most one part has choices, or several have the same.
    """
    parts = [part for part in parts if len(part)] or parts[:1]
    choices = {part.choices for part in parts if part.choices}
    assert len(choices) <= 1
    alloc_ns = np.concatenate([part.alloc_ns for part in parts])
    places = None if (alloc_ns[1:] >= alloc_ns[:-1]).all() else _places(alloc_ns)
    if len(parts) == 1 and places is None:
        return parts[0]
    return Workload(
        **{name: _joined([getattr(part, name) for part in parts], places) for name in COLUMNS},
        choices=next(iter(choices), ()),
    )


def _places(keys: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the place of each key in their order; equal ones keep theirs."""
    order = np.argsort(keys, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


# Many columns have one value for all blocks of a run. They take no memory, and no policy copies them: numpy
# gives their rows one place, a stride of 0.


def _constant(value: Any, dtype: DTypeLike, count: int) -> NDArray[Any]:
    """Return a column of one value, or of one for each row where `value` has as many."""
    return np.broadcast_to(np.asarray(value, dtype), count)


def _is_constant(column: NDArray[Any]) -> bool:
    return column.strides == (0,) and len(column) > 0


def _taken(column: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    return np.broadcast_to(column[0], len(rows)) if _is_constant(column) else column[rows]


def _joined(columns: Sequence[NDArray[Any]], places: NDArray[np.intp] | None) -> NDArray[Any]:
    """Return the rows of all columns, each at its place, or one column after the other without places."""
    first = columns[0]
    if all(_is_constant(column) and column[0] == first[0] for column in columns):
        return np.broadcast_to(first[0], sum(map(len, columns)))
    if places is None:
        return np.concatenate(columns)
    joined = np.empty(len(places), first.dtype)
    begin = 0
    for column in columns:
        joined[places[begin : begin + len(column)]] = column
        begin += len(column)
    return joined


def workload_of(
    blocks: BlockTable, attribution: Attribution, device_type: int, device_index: int
) -> Workload:
    """Return the blocks of one device, as in the trace."""
    rows = np.flatnonzero((blocks.device_type == device_type) & (blocks.device_index == device_index))
    rows = rows[np.argsort(blocks.alloc_ns[rows], kind="stable")]
    return Workload(
        block=rows.astype(np.int32),
        size_bytes=blocks.size_bytes[rows],
        stream=_constant(0, np.int64, len(rows)),
        alloc_ns=blocks.alloc_ns[rows],
        free_ns=blocks.free_ns[rows],
        category=attribution.category[rows],
        phase=attribution.phase[rows],
        iteration=attribution.iteration[rows],
        operator=attribution.operator[rows],
        root_operator=attribution.root_operator[rows],
        module=attribution.module[rows],
        source_line=attribution.source_line[rows],
        tensor=attribution.tensor[rows],
        flags=blocks.flags[rows],
        host=attribution.host[rows].astype(np.bool_)
        if device_type == CPU
        else _constant(False, np.bool_, len(rows)),
        choice=_constant(-1, np.int32, len(rows)),
        mempool=_constant(0, np.int32, len(rows)),
        waits=_constant(False, np.bool_, len(rows)),
        restores=_constant(NOT_RESTORED, np.int32, len(rows)),
    )
