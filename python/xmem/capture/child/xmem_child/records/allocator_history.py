"""The requests of one device, from the history that PyTorch's allocator kept of them.

``torch.cuda.memory._snapshot()["device_traces"]`` lists what the allocator did under its lock, of all threads
and all of their frees, in order (``record_trace``, CUDACachingAllocator.cpp, torch 2.0 and later). It is the
truth about a run: the profiler's events say who asked, and may miss threads.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ALLOCATION = -1
"""In ``Requests.order``: the next allocation; other values are the allocation that is freed."""

PoolId = tuple[int, int]
_DEFAULT_POOL = (0, 0)


class Mark(NamedTuple):
    """A call to the allocator other than a request for memory.

    Attributes:
        position: Number of allocations and frees of the device before it.
        kind: Name of a ``RequestKind`` in lower case.
        number: The private pool, the checkpoint that it restores, or -1.
    """

    position: int
    kind: str
    number: int


@dataclass
class Requests:
    """The requests to the allocator of one device, as columns with one entry per allocation.

    Attributes:
        device: Its index.
        address: Where each allocation was placed.
        size_bytes: Requested size.
        stream: Numbered by first use, 0 for the default stream.
        mempool: Private pool that served it, 0 for the default pool.
        order: For each request, ``ALLOCATION`` or the allocation that is freed.
        time_us: Time of each request, on the allocator's clock.
        waits: Allocations whose free waited for other streams.
        marks: Everything else, by position.
        restored: Allocations made when a pool was restored to a checkpoint, and the allocation whose place
            each takes; -1 where that place was free at the checkpoint.
    """

    device: int
    address: list[int] = field(default_factory=list)
    size_bytes: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    mempool: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    time_us: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    restored: list[tuple[int, int]] = field(default_factory=list)

    def columns(self) -> dict[str, Any]:
        """Return the columns for the metadata of the trace; uninformative ones are empty."""
        return {
            "device": self.device,
            "address": self.address,
            "size_bytes": self.size_bytes,
            "stream": self.stream if any(self.stream) else [],
            "mempool": self.mempool if any(self.mempool) else [],
            "order": self.order,
            "waits": self.waits,
            "marks": self.marks,
            "restored": self.restored,
        }


@dataclass(frozen=True)
class Limits:
    """The limits at which the allocator gives cached memory back by itself.

    Attributes:
        reserved_bytes: The most that it may reserve, None where nothing bounds it.
        collects_above_bytes: Reserved bytes above which it collects garbage, None where it never does.
    """

    reserved_bytes: int | None = None
    collects_above_bytes: int | None = None

    def explain(self, reserved_bytes: int, asked_bytes: int) -> bool:
        """Return whether a request for a new segment makes the allocator look for memory that it can give
        back."""
        if self.collects_above_bytes is not None and reserved_bytes > self.collects_above_bytes:
            return True
        return self.reserved_bytes is not None and reserved_bytes + asked_bytes > self.reserved_bytes


def requests_of(
    device: int,
    entries: Sequence[dict[str, Any]],
    marks: Sequence[Mark],
    limits: Limits,
    pool_number: Callable[[PoolId], int],
    pool_of_segment: Callable[[int, int, int, int], PoolId],
    *,
    when_done: bool = False,
) -> Requests:
    """Read the history of a device.

    Args:
        device: Its index.
        entries: The device's part of ``device_traces``.
        marks: The calls that Python made, by position.
        limits: Limits of the allocator.
        pool_number: The number of a private pool by its id.
        pool_of_segment: Returns the private pool of the segment around an address, for histories without
            pools (before torch 2.9); its other arguments are the position, and those between which the
            segment was there.
        when_done: Whether frees that waited for other streams stand where those were done, as they may be
            any time later; otherwise where they were asked for, with a note that they waited.
    """
    segments = None if entries and "pool_id" in entries[0] else _Segments(entries)
    reader = _HistoryReader(Requests(device), marks, limits, pool_number, pool_of_segment, segments)
    for entry in entries:
        reader.read(entry)
    requests = reader.finish()
    if when_done:
        _free_when_done(requests, reader.completed)
    return requests


class _Completion(NamedTuple):
    """Where a free that had waited completed: before the request at this position."""

    position: int
    time_us: int


def _free_when_done(requests: Requests, completed: dict[int, _Completion]) -> None:
    """Move the frees that waited to where they completed; those that never did are left out."""
    waits = set(requests.waits)
    at: dict[int, list[int]] = {}
    for allocation in sorted(waits & completed.keys(), key=lambda waiting: completed[waiting].position):
        at.setdefault(completed[allocation].position, []).append(allocation)
    order, times, position_of = [], [], []
    for position in range(len(requests.order) + 1):
        for allocation in at.get(position, ()):
            order.append(allocation)
            times.append(completed[allocation].time_us)
        position_of.append(len(order))
        if position < len(requests.order) and requests.order[position] not in waits:
            order.append(requests.order[position])
            times.append(requests.time_us[position])
    requests.order, requests.time_us, requests.waits = order, times, []
    requests.marks = [mark._replace(position=position_of[mark.position]) for mark in requests.marks]


class _GivenBack(NamedTuple):
    """Segments that went back to the device between two requests."""

    position: int
    reserved_bytes: int  # before
    pools: set[PoolId]


class _Segments:
    """The lifetimes of segments that are not part of an expandable one."""

    def __init__(self, entries: Iterable[dict[str, Any]]) -> None:
        self._ends: dict[tuple[int, int], int] = {}  # by address and position of the beginning
        self._begins: list[int] = []  # addresses of the living, ascending
        self._born: dict[int, tuple[int, int]] = {}  # of the living: size and position
        position = 0
        born: dict[int, int] = {}
        for entry in entries:
            if entry["action"] in ("alloc", "free_requested"):
                position += 1
            elif entry["action"] == "segment_alloc":
                born[entry["addr"]] = position
            elif entry["action"] == "segment_free":
                self._ends[entry["addr"], born.pop(entry["addr"], 0)] = position

    def begin(self, address: int, size: int, position: int) -> None:
        bisect.insort(self._begins, address)
        self._born[address] = size, position

    def end(self, address: int) -> None:
        if address in self._born:
            del self._born[address]
            self._begins.remove(address)

    def span_of(self, address: int) -> tuple[int, int]:
        """Return the positions between which the segment around an address exists; always, if expandable."""
        at = bisect.bisect_right(self._begins, address) - 1
        if at >= 0:
            begin = self._begins[at]
            size, born = self._born[begin]
            if address < begin + size:
                return born, self._ends.get((begin, born), sys.maxsize)
        return 0, sys.maxsize


class _HistoryReader:
    def __init__(
        self,
        requests: Requests,
        marks: Sequence[Mark],
        limits: Limits,
        pool_number: Callable[[PoolId], int],
        pool_of_segment: Callable[[int, int, int, int], PoolId],
        segments: _Segments | None,
    ) -> None:
        self._requests = requests
        self._segments = segments  # where the history does not name pools
        self._marks = sorted(marks, key=lambda mark: mark.position)
        self._emptied = {mark.position for mark in marks if mark.kind in ("empty_cache", "empty_pool")}
        self._limits = limits
        self._pool_number = pool_number
        self._pool_of_segment = pool_of_segment
        self._streams = {0: 0}
        self._live: dict[int, int] = {}  # allocation by address
        self._last_freed: tuple[int, int] | None = None  # address and allocation of the entry just read
        self._waiting: dict[int, int] = {}  # allocation by address, of frees that did not complete yet
        self.completed: dict[int, _Completion] = {}  # by allocation, of those that had waited
        self._reserved = 0
        self._asked = 0
        self._given_back: _GivenBack | None = None
        self._found: list[tuple[Mark, set[int]]] = []  # and the private pools that lost memory

    def read(self, entry: dict[str, Any]) -> None:
        action = entry["action"]
        if action == "free_completed":
            if self._last_freed is not None and self._last_freed[0] == entry["addr"]:
                self._last_freed = None
            elif (allocation := self._waiting.pop(entry["addr"], None)) is not None:
                position = len(self._requests.order)
                self.completed[allocation] = _Completion(position, entry.get("time_us", -1))
            return
        self._free_waits()
        if action == "alloc":
            self._explain(failed=False)
            self._allocate(entry)
        elif action == "free_requested":
            self._explain(failed=None)
            self._free(entry)
        elif action in ("segment_alloc", "segment_map"):
            self._reserved += entry["size"]
            self._asked += entry["size"]
            if self._segments is not None and action == "segment_alloc":
                self._segments.begin(entry["addr"], entry["size"], len(self._requests.order))
        elif action in ("segment_free", "segment_unmap"):
            self._give_back(entry)
        elif action == "oom":
            self._explain(failed=True)

    def finish(self) -> Requests:
        self._free_waits()
        self._explain(failed=None)
        self._requests.marks = _with_found(self._marks, self._found)
        self._find_restored()
        return self._requests

    def _allocate(self, entry: dict[str, Any]) -> None:
        requests = self._requests
        self._live[entry["addr"]] = len(requests.address)
        requests.address.append(entry["addr"])
        requests.size_bytes.append(entry["size"])
        requests.stream.append(self._streams.setdefault(entry["stream"], len(self._streams)))
        requests.mempool.append(self._pool_number(self._pool_of(entry)))
        requests.order.append(ALLOCATION)
        requests.time_us.append(entry.get("time_us", -1))

    def _free(self, entry: dict[str, Any]) -> None:
        allocation = self._live.pop(entry["addr"], None)
        if allocation is None:
            return  # it is older than the history
        self._requests.order.append(allocation)
        self._requests.time_us.append(entry.get("time_us", -1))
        self._last_freed = entry["addr"], allocation

    def _free_waits(self) -> None:
        """Note that the free read last did not complete at once."""
        if self._last_freed is not None:
            address, allocation = self._last_freed
            self._requests.waits.append(allocation)
            self._waiting[address] = allocation
            self._last_freed = None

    def _give_back(self, entry: dict[str, Any]) -> None:
        if self._given_back is None:
            self._given_back = _GivenBack(len(self._requests.order), self._reserved, set())
            self._asked = 0
        self._given_back.pools.add(self._pool_of(entry))
        self._reserved -= entry["size"]
        if self._segments is not None and entry["action"] == "segment_free":
            self._segments.end(entry["addr"])

    def _explain(self, failed: bool | None) -> None:
        """Find out who gave memory back before a request: the allocator, which had none left, or a call."""
        given, asked = self._given_back, self._asked
        self._given_back, self._asked = None, 0
        if given is None or given.position in self._emptied:
            return
        if failed is False and asked > 0 and self._limits.explain(given.reserved_bytes, asked):
            return
        # C++ emptied the cache (cudnn.benchmark does), or a request failed after it was flushed.
        pools = {self._pool_number(pool) for pool in given.pools} - {0}
        if _DEFAULT_POOL in given.pools:
            self._found.append((Mark(given.position, "empty_cache", -1), pools))
        else:
            self._found.extend(
                (Mark(given.position, "empty_pool", number), {number}) for number in sorted(pools)
            )

    def _pool_of(self, entry: dict[str, Any]) -> PoolId:
        if "pool_id" in entry:
            return (int(entry["pool_id"][0]), int(entry["pool_id"][1]))
        assert self._segments is not None
        address = entry["addr"]
        position = len(self._requests.order)
        return self._pool_of_segment(address, position, *self._segments.span_of(address))

    def _find_restored(self) -> None:
        """Find the allocations that restore a pool to a checkpoint, what each stands for, and where a segment
        ends.

        ``setCheckpointPoolState`` frees what lives in the pool, then allocates every block of a segment as it
        was, then frees those that were free, segment by segment.
        """
        requests = self._requests
        if not any(mark.kind == "begin_restore" for mark in requests.marks):
            return
        finder = _RestoredFinder(requests)
        at: dict[int, list[Mark]] = {}
        for mark in requests.marks:
            at.setdefault(mark.position, []).append(mark)
        for position in range(len(requests.order) + 1):
            for mark in at.get(position, ()):
                finder.call(mark)
            if position < len(requests.order):
                finder.request(position)
        requests.marks = finder.marks


def _with_found(marks: Sequence[Mark], found: Sequence[tuple[Mark, set[int]]]) -> list[Mark]:
    """Put emptied caches among the calls between the same two requests, which the history does not order.

    The memory of a pool goes when it has no users left, and nothing goes while a scope is open.
    """
    merged: list[Mark] = []
    index = opened = 0

    def copy() -> None:
        nonlocal index, opened
        mark = marks[index]
        opened += mark.kind in ("begin_pool", "begin_capture")
        opened -= mark.kind == "end_pool"
        merged.append(mark)
        index += 1

    for emptied, pools in found:
        while index < len(marks) and marks[index].position < emptied.position:
            copy()
        while index < len(marks) and marks[index].position == emptied.position:
            to_come = marks[index : bisect.bisect_right(marks, emptied.position, key=lambda m: m.position)]
            releases = any(mark.kind == "release_pool" and mark.number in pools for mark in to_come)
            if opened == 0 and not releases:
                break
            copy()
        merged.append(emptied)
    while index < len(marks):
        copy()
    return merged


class _RestoredFinder:
    def __init__(self, requests: Requests) -> None:
        self.marks: list[Mark] = []
        self._requests = requests
        self._checkpoints: list[dict[int, int]] = []
        self._live: dict[int, int] = {}
        self._allocations = 0
        self._restoring: int | None = None  # the checkpoint
        self._end_of_block: int | None = None  # of the last allocation of the segment that is restored
        self._end_of_allocations = -1  # position after the last allocation of the restore

    def call(self, mark: Mark) -> None:
        if mark.kind == "begin_restore":
            self._restoring = mark.number
            self._end_of_allocations = mark.position
            self._end_of_block = None
            return
        if mark.kind == "checkpoint_pool":
            self._checkpoints.append(dict(self._live))
        elif mark.kind == "restore_pool":
            self._restoring = None
            # What was free at the checkpoint is freed when all is in its place.
            while self.marks and self.marks[-1].position >= self._end_of_allocations:
                if self.marks[-1].kind != "restore_segment":
                    break
                self.marks.pop()
            mark = mark._replace(position=self._end_of_allocations)
        self.marks.append(mark)

    def request(self, position: int) -> None:
        requests = self._requests
        freed = requests.order[position]
        if freed != ALLOCATION:
            self._live.pop(requests.address[freed], None)
            self._end_segment(position)
            return
        allocation, self._allocations = self._allocations, self._allocations + 1
        address = requests.address[allocation]
        self._live[address] = allocation
        if self._restoring is None:
            return
        if address != self._end_of_block:
            self._end_segment(position)
        original = self._checkpoints[self._restoring].get(address, -1)
        requests.restored.append((allocation, original))
        self._end_of_block = address + requests.size_bytes[allocation]
        self._end_of_allocations = position + 1

    def _end_segment(self, position: int) -> None:
        if self._restoring is not None and self._end_of_block is not None:
            self.marks.append(Mark(position, "restore_segment", self._restoring))
        self._end_of_block = None
