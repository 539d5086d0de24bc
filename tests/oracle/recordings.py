"""The requests of a recorded GPU run, as a program would make them again on any allocator."""

from __future__ import annotations

import numpy as np

from xmem.simulation.replay import BlockState, RequestKind, Requests
from xmem.snapshot.snapshot import RecordedAction, RecordedDevice

_RELEASES = (RecordedAction.SEGMENT_FREE, RecordedAction.SEGMENT_UNMAP)
_ANSWERS = (
    RecordedAction.SEGMENT_ALLOC,
    RecordedAction.SEGMENT_MAP,
    RecordedAction.ALLOC,
    RecordedAction.OOM,
)


def requests_of(recorded: RecordedDevice) -> Requests:
    """Allocations, frees, uses on other streams and emptied caches of a recording, in their order.

    Blocks that were alive before it come first. Streams are numbered in order of appearance. A free that
    completed later shows that another stream used the block. Segments given back with no allocation after
    them show an emptied cache.
    """
    return _Reading(recorded).requests()


class _Reading:
    def __init__(self, recorded: RecordedDevice) -> None:
        self.recorded = recorded
        self.kind: list[int] = []
        self.block: list[int] = []
        self.size: list[int] = []
        self.stream: list[int] = []
        self.streams: dict[int, int] = {}
        self.block_at: dict[int, int] = {}

    def requests(self) -> Requests:
        self._allocate_what_was_alive()
        trace = self.recorded.trace
        rows = list(
            zip(
                trace.action.tolist(),
                trace.address.tolist(),
                trace.size_bytes.tolist(),
                trace.stream.tolist(),
                strict=True,
            )
        )
        for at, (action, address, size, stream) in enumerate(rows):
            if action == RecordedAction.ALLOC:
                self._alloc(address, size, stream)
            elif action == RecordedAction.OOM:
                self._alloc(-1, size, stream)
            elif action == RecordedAction.FREE_REQUESTED:
                following = rows[at + 1] if at + 1 < len(rows) else None
                at_once = following is None or following[:2] == (RecordedAction.FREE_COMPLETED, address)
                self._free(address, used_elsewhere=not at_once)
            elif action in _RELEASES and self._ends_an_emptied_cache(rows, at):
                self._add(RequestKind.EMPTY_CACHE, -1)
        return Requests(
            np.array(self.kind, np.uint8),
            np.array(self.block, np.int32),
            np.arange(len(self.kind), dtype=np.int64),
            np.array(self.size, np.int64),
            np.array(self.stream, np.int64),
        )

    def _allocate_what_was_alive(self) -> None:
        trace, state = self.recorded.trace, self.recorded.state
        allocated: set[int] = set()
        before: dict[int, tuple[int, int]] = {}
        for action, address, size, stream in zip(
            trace.action.tolist(),
            trace.address.tolist(),
            trace.size_bytes.tolist(),
            trace.stream.tolist(),
            strict=True,
        ):
            if action == RecordedAction.ALLOC:
                allocated.add(address)
            elif action == RecordedAction.FREE_REQUESTED and address not in allocated:
                before[address] = (size, stream)
        for row in np.flatnonzero(state.block_state == BlockState.ALLOCATED):
            address = int(state.block_address[row])
            if address not in allocated:
                stream = int(state.segment_stream[state.block_segment[row]])
                before[address] = (int(state.block_requested_bytes[row]), stream)
        for address, (size, stream) in sorted(before.items()):
            self._alloc(address, size, stream)

    @staticmethod
    def _ends_an_emptied_cache(rows: list[tuple[int, int, int, int]], at: int) -> bool:
        following = rows[at + 1][0] if at + 1 < len(rows) else RecordedAction.OTHER
        return following not in (*_RELEASES, *_ANSWERS)

    def _alloc(self, address: int, size: int, stream: int) -> None:
        number = self.streams.setdefault(stream, len(self.streams))
        self.size.append(size)
        self.stream.append(number)
        self.block_at[address] = len(self.size) - 1
        self._add(RequestKind.ALLOC, len(self.size) - 1)

    def _free(self, address: int, *, used_elsewhere: bool) -> None:
        block = self.block_at.pop(address)
        if used_elsewhere:
            self._add(RequestKind.RECORD_STREAM, block)
        self._add(RequestKind.FREE, block)

    def _add(self, kind: RequestKind, block: int) -> None:
        self.kind.append(kind)
        self.block.append(block)
