"""The CUDA streams that a script named while it ran on the CPU."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.run.recorded import Recorded
from xmem.run.workload import Workload
from xmem.trace.notes import StreamNotes

_DEFAULT = 0


class AssignStreams:
    """PyTorch's allocator has a pool for each stream, and keeps a block that another stream was told to use
    (`record_stream`) until that stream is done (`CUDACachingAllocator.cpp`, `get_free_block` and `free`). On
    the CPU the capture notes which stream is current when, and what is used on others.
    """

    name = "cuda_streams"
    description = "blocks go to the pools of the CUDA streams that the script named, and wait for those that use them"

    def __call__(self, workload: Workload, context: Recorded) -> Workload:
        """Fill in streams, and which blocks wait."""
        noted = context.notes.streams
        if not noted.time_ns and not noted.used_ns:
            return workload
        stream = _stream_at(workload.alloc_ns, noted)
        return workload.with_columns(stream=stream, waits=_used_elsewhere(workload, stream, context, noted))


def _stream_at(time_ns: NDArray[np.int64], noted: StreamNotes) -> NDArray[np.int64]:
    """Return the stream that was current at each time."""
    streams = np.array([_DEFAULT, *noted.stream], np.int64)
    found: NDArray[np.int64] = streams[np.searchsorted(np.array(noted.time_ns, np.int64), time_ns, "right")]
    return found


def _used_elsewhere(
    workload: Workload, stream: NDArray[np.int64], context: Recorded, noted: StreamNotes
) -> NDArray[np.bool_]:
    """Return which blocks a stream other than their own was told to use."""
    waits: NDArray[np.bool_] = np.zeros(len(workload), np.bool_)
    own = np.flatnonzero(workload.block >= 0)
    address = context.blocks.address[workload.block[own]]
    rows = own[np.lexsort((workload.alloc_ns[own], address))]
    address = context.blocks.address[workload.block[rows]]
    for used, time_ns, on in zip(noted.used_address, noted.used_ns, noted.used_on, strict=True):
        first, last = np.searchsorted(address, used, "left"), np.searchsorted(address, used, "right")
        place = first + np.searchsorted(workload.alloc_ns[rows[first:last]], time_ns, "right") - 1
        if place >= first and workload.free_ns[rows[place]] > time_ns and stream[rows[place]] != on:
            waits[rows[place]] = True
    return waits
