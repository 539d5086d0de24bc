"""The blocks that a GPU would hold: the table that policies transform and the simulation replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        """Return the workload of some of the rows."""
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)  # a mask would be searched again for each column
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
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
        name: np.asarray(columns.get(name, np.full(count, unknown.get(name, -1)))).astype(
            _DTYPES.get(name, np.int32)
        )
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
        name: np.broadcast_to(np.asarray(value, _DTYPES.get(name, np.int32)), len(rows))
        for name, value in own.items()
    }
    return replace(rows, **filled, choices=())


def concatenated(parts: Sequence[Workload]) -> Workload:
    """Return the blocks of all parts in order of allocation; at equal times, the earlier part's first.

    At most one part has choices, or several have the same.
    """
    choices = {part.choices for part in parts if part.choices}
    assert len(choices) <= 1
    joined = Workload(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS},
        choices=next(iter(choices), ()),
    )
    if (joined.alloc_ns[1:] >= joined.alloc_ns[:-1]).all():
        return joined
    return joined.select(np.argsort(joined.alloc_ns, kind="stable"))


def workload_of(
    blocks: BlockTable, attribution: Attribution, device_type: int, device_index: int
) -> Workload:
    """Return the blocks of one device, as in the trace."""
    rows = np.flatnonzero((blocks.device_type == device_type) & (blocks.device_index == device_index))
    rows = rows[np.argsort(blocks.alloc_ns[rows], kind="stable")]
    return Workload(
        block=rows.astype(np.int32),
        size_bytes=blocks.size_bytes[rows],
        stream=np.zeros(len(rows), np.int64),
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
        host=attribution.host[rows].astype(np.bool_) & (device_type == CPU),
        choice=np.full(len(rows), -1, np.int32),
        mempool=np.zeros(len(rows), np.int32),
        waits=np.zeros(len(rows), np.bool_),
        restores=np.full(len(rows), NOT_RESTORED, np.int32),
    )
