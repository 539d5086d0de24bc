"""The CUDA streams that a script named while it ran on the CPU."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.records import dataclass
from xmem.run.recorded import Recorded
from xmem.run.workload import Workload
from xmem.trace.notes import StreamNotes

_DEFAULT = 0


class AssignStreams:
    """PyTorch's allocator has a pool for each stream, and keeps a block that another stream was told to use
    (`record_stream`) until that stream is done (`CUDACachingAllocator.cpp`, `get_free_block` and `free`). On
    the CPU the capture notes which stream is current when, and what is used on others.

    Autograd's engine runs a node on the stream on which its forward ran, and tells what the node is given
    from another stream to wait (`Engine::evaluate_function`, `InputBuffer::add`; torch 2.5 to 2.13).
    """

    name = "cuda_streams"
    description = (
        "blocks go to the pools of the CUDA streams that the script named, and wait for those that use them"
    )

    def __call__(self, workload: Workload, context: Recorded) -> Workload:
        """Fill in streams, and which blocks wait."""
        noted = context.notes.streams
        if not noted.time_ns and not noted.used_ns:
            return workload
        stream = _stream_at(workload.alloc_ns, noted)
        waits = np.zeros(len(workload), np.bool_)
        if (stream != _DEFAULT).any():
            nodes = _Nodes.of(workload, context, noted)
            stream = nodes.streams_of_blocks(stream)
            waits |= nodes.given_from_elsewhere(workload, stream)
        waits |= _used_elsewhere(workload, stream, context, noted)
        return workload.with_columns(stream=stream, waits=waits)


def _stream_at(time_ns: NDArray[np.int64], noted: StreamNotes) -> NDArray[np.int64]:
    """Return the stream that was current at each time."""
    streams = np.array([_DEFAULT, *noted.stream], np.int64)
    found: NDArray[np.int64] = streams[np.searchsorted(np.array(noted.time_ns, np.int64), time_ns, "right")]
    return found


@dataclass(frozen=True)
class _Nodes:
    """The nodes of autograd that make blocks.

    Attributes:
        of_block: Row of the node in the EventTable, -1 for blocks of no node.
        begin_ns: When it began.
        end_ns: When it ended.
        stream: The stream of its forward.
        entered_on: The stream that was current when it began on the CPU.
    """

    of_block: NDArray[np.int32]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    stream: NDArray[np.int64]
    entered_on: NDArray[np.int64]

    @classmethod
    def of(cls, workload: Workload, context: Recorded, noted: StreamNotes) -> _Nodes:
        """Find them, one for each block."""
        operators, events = context.operators, context.trace.events
        node = operators.enclosing(workload.operator, operators.evaluations)
        forward = operators.forward_of(workload.operator)
        known = (node >= 0) & (forward >= 0)
        return cls(
            of_block=np.where(known, node, -1).astype(np.int32),
            begin_ns=events.begin_ns[node],
            end_ns=events.end_ns[node],
            stream=_stream_at(events.begin_ns[forward], noted),
            entered_on=_stream_at(events.begin_ns[node], noted),
        )

    def streams_of_blocks(self, stream: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stream of each block: that of its node, unless the code of the node chose another."""
        follows = (self.of_block >= 0) & (stream == self.entered_on)
        return np.where(follows, self.stream, stream)

    def given_from_elsewhere(self, workload: Workload, stream: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks a node was given from another stream: such as end with it and began before."""
        waits: NDArray[np.bool_] = np.zeros(len(workload), np.bool_)
        beside = np.flatnonzero((self.of_block >= 0) & (self.stream != _DEFAULT))
        for row in beside[np.unique(self.of_block[beside], return_index=True)[1]]:
            begin_ns, end_ns = self.begin_ns[row], self.end_ns[row]
            ends = (workload.free_ns >= begin_ns) & (workload.free_ns <= end_ns)
            waits |= ends & (workload.alloc_ns < begin_ns) & (stream != self.stream[row])
        return waits


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
