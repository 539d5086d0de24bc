"""Requests as the real allocator got them: a capture on the phantom GPU includes its history."""

from __future__ import annotations

import numpy as np

from xmem.run.allocator_history import AllocatorHistory
from xmem.run.recorded import Recorded
from xmem.run.workload import Workload
from xmem.trace.notes import PhantomNotes


class RecordedRequests:
    """The profiler tells the size of the block that served a request, and who asked; the allocator's own
    history tells what was asked for, on which stream, in which private pool, and in which order.

    Where the history does not fit the blocks of the trace, the trace is taken as it is.
    """

    name = "recorded_requests"
    description = (
        "sizes as asked for, streams and pools, from the history of the allocator that served the run"
    )

    def __call__(self, workload: Workload, context: Recorded) -> Workload:
        """Replace sizes and times, fill in streams and pools."""
        history = context.history
        if history is None:
            return _without_order(workload, context.notes.phantom)
        return _joined(workload, history, len(context.blocks))


def _joined(workload: Workload, history: AllocatorHistory, blocks: int) -> Workload:
    allocation_of = np.full(blocks, -1, np.int64)
    allocation_of[history.block] = np.arange(len(history.block))
    rows = allocation_of[workload.block]
    joined = workload.with_columns(
        size_bytes=history.size_bytes[rows],
        stream=history.stream[rows],
        mempool=history.mempool[rows],
        waits=history.waits[rows],
        restores=history.restores[rows],
        alloc_ns=history.alloc_ns[rows],
        free_ns=history.free_ns[rows],
    )
    return joined.select(np.argsort(rows))


def _without_order(workload: Workload, phantom: PhantomNotes | None) -> Workload:
    """Replace requests by those of captures before 2026-12: only sizes and streams, in the order of the
    trace."""
    requests = None if phantom is None else phantom.unordered_requests
    if requests is None or len(requests.size_bytes) != len(workload):
        return workload
    sizes = np.array(requests.size_bytes, np.int64)
    if (sizes > workload.size_bytes).any():
        return workload
    streams = requests.stream or np.zeros(len(sizes), np.int64)
    return workload.with_columns(size_bytes=sizes, stream=np.array(streams, np.int64))
