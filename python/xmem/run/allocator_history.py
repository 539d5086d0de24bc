"""The history of the allocator that served a run, joined to the blocks of its trace.

A capture on the phantom GPU includes the requests to PyTorch's allocator, in order
(``xmem_child/records/allocator_history.py``): the trace tells who asked, the history what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem.records import dataclass
from xmem.simulation.replay import FREE_AT_CHECKPOINT, Calls, RequestKind
from xmem.trace.blocks import NEVER, BlockTable
from xmem.trace.notes import DeviceRequests

_ALLOCATION = -1
_SPACING_NS = 2  # gap between two requests, so that a call has an instant of its own between them

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class AllocatorHistory:
    """Requests of one device; columns have a row for each allocation, in order.

    Attributes:
        block: int32, row of the BlockTable.
        size_bytes: int64, requested size.
        stream: int64.
        mempool: int32, private pool that served it, 0 for the default pool.
        waits: bool, whether its free waited for other streams.
        restores: int32, as in `Workload`.
        alloc_ns: int64, the block's time, moved where clocks of threads contradict the order.
        free_ns: int64, likewise; ``NEVER`` where the history does not hold a free.
        calls: All other calls to the allocator.
    """

    block: Int32
    size_bytes: Int64
    stream: Int64
    mempool: Int32
    waits: NDArray[np.bool_]
    restores: Int32
    alloc_ns: Int64
    free_ns: Int64
    calls: Calls


def allocator_history(
    requests: Sequence[DeviceRequests], blocks: BlockTable, device_type: int, device_index: int
) -> AllocatorHistory | None:
    """Join a history to the blocks of a device.

    The n-th allocation at an address is the n-th block there, whatever the clocks of threads say.

    Returns:
        None for a trace without the history of this device, or one that does not fit it.
    """
    found = next((row for row in requests if row.device == device_index), None)
    if found is None:
        return None
    rows = np.flatnonzero((blocks.device_type == device_type) & (blocks.device_index == device_index))
    rows = rows[np.argsort(blocks.alloc_ns[rows], kind="stable")]
    address = np.array(found.address, np.int64)
    if len(address) != len(rows):
        return None
    by_history = np.argsort(address, kind="stable")
    by_trace = np.argsort(blocks.address[rows], kind="stable")
    if not np.array_equal(address[by_history], blocks.address[rows][by_trace]):
        return None
    block = np.empty(len(rows), np.int32)
    block[by_history] = rows[by_trace]
    size_bytes = np.array(found.size_bytes, np.int64)
    if (size_bytes > blocks.size_bytes[block]).any():
        return None
    if not {mark[1].upper() for mark in found.marks} <= RequestKind.__members__.keys():
        return None  # of a later version
    order = np.array(found.order, np.int64)
    alloc_ns, free_ns, times = _in_order(order, blocks.alloc_ns[block], blocks.free_ns[block])
    return AllocatorHistory(
        block=block,
        size_bytes=size_bytes,
        stream=_column(found.stream, len(block)).astype(np.int64),
        mempool=_column(found.mempool, len(block)),
        waits=np.isin(np.arange(len(block)), np.array(found.waits, np.int64)),
        restores=_restores(found.restored, block),
        alloc_ns=alloc_ns,
        free_ns=free_ns,
        calls=_calls(found.marks, times),
    )


def _in_order(order: Int64, alloc_ns: Int64, free_ns: Int64) -> tuple[Int64, Int64, Int64]:
    """Return times that keep the order of the requests: those of the allocations, of the frees and of all."""
    is_allocation = order == _ALLOCATION
    times = np.empty(len(order), np.int64)
    times[is_allocation] = alloc_ns
    freed = order[~is_allocation]
    times[~is_allocation] = free_ns[freed]
    times[times == NEVER] = np.iinfo(np.int64).min  # the trace ended before: as early as the order allows
    steps = np.arange(len(order), dtype=np.int64) * _SPACING_NS
    if len(times) and times[0] == np.iinfo(np.int64).min:
        times[0] = 0
    times = np.maximum.accumulate(np.maximum(times, times[:1] if len(times) else 0) - steps) + steps
    frees = np.full(len(alloc_ns), NEVER, np.int64)
    frees[freed] = times[~is_allocation]
    return times[is_allocation], frees, times


def _calls(marks: Sequence[Sequence[Any]], times: Int64) -> Calls:
    """Place each call just after the request before it."""
    position = np.array([mark[0] for mark in marks], np.int64)
    before = np.concatenate([[times[0] - _SPACING_NS if len(times) else 0], times])
    return Calls(
        before[np.minimum(position, len(times))] + 1,
        np.array([RequestKind[mark[1].upper()] for mark in marks], np.uint8),
        np.array([mark[2] for mark in marks], np.int32),
    )


def _restores(restored: Sequence[Sequence[int]], block: Int32) -> Int32:
    restores = np.full(len(block), -1, np.int32)
    for allocation, original in restored:
        restores[allocation] = FREE_AT_CHECKPOINT if original < 0 else block[original]
    return restores


def _column(values: Sequence[int], count: int) -> Int32:
    return np.array(values, np.int32) if len(values) else np.zeros(count, np.int32)
