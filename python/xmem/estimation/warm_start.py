"""What PyTorch's allocator held when a trace of a GPU began, rebuilt from the addresses and totals in it.

A trace that begins in the middle of a run shows neither the segments nor most blocks that were there. The
totals say how many bytes they were, and the addresses of what follows say where they lay: a block lies in one
segment, small and large blocks in different ones, and a block that raised the total lies at the beginning of
a segment that is new (torch 2.13, c10/cuda/CUDACachingAllocator.cpp, ``alloc_block``). What no block of the
trace ever touched was of no use to it, and stays occupied.

With other settings or another script, the run up to the trace would have left something else. Two runs bound
that: one in which nothing happened before the trace but that the memory in use was allocated, and one in
which all that was reserved had been in use at one time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from xmem.orchestration.lifetimes.host_blocks import BASELINE_CATEGORIES
from xmem.records import dataclass
from xmem.run.job_settings import job_settings
from xmem.run.recorded import Origin, Recorded
from xmem.run.workload import MADE_BY_POLICY, Workload
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.replay import NEVER, Requests, make_requests
from xmem.simulation.replay import replay as replay_requests
from xmem.text.units import format_bytes
from xmem.trace.blocks import BORN_BEFORE

Int64 = NDArray[np.int64]

# torch 2.13, c10/core/AllocatorConfig.h: kSmallSize, kSmallBuffer, kLargeBuffer, kMinLargeAlloc,
# kMinBlockSize.
_SMALL_BYTES = 1 << 20
_PAGE_BYTES = 2 << 20
_LARGE_SEGMENT_BYTES = 20 << 20
_SEGMENT_OF_ITS_OWN_BYTES = 10 << 20
_LEAST_BLOCK_BYTES = 512

# Memory of many tensors whose sizes are not known, in parts that a rounding to divisions of powers of two
# leaves alone, and in parts that it raises most. Both fill segments to the last byte.
_ROUND_BYTES = 128 << 20
_UNEVEN_BYTES = 130 << 20

_CLOSE = 0.03  # of what PyTorch's allocator counted

_KEPT, _FREE = -1, -2


@dataclass(frozen=True)
class _Segment:
    """A segment that was there, in pieces from its beginning to its end.

    Attributes:
        small: Whether it serves small requests.
        size_bytes: Its size.
        pieces: Size and content of each: the row of a block, ``_FREE``, or ``_KEPT`` where nothing of the
            trace ever was.
    """

    small: bool
    size_bytes: int
    pieces: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Start:
    """The allocator before the first event of a trace.

    Attributes:
        reserved_bytes: What it had reserved.
        segments: Segments that the trace uses: of several ways to cut its addresses, the finest.
        runs: The same in the coarsest way, with segments side by side taken for one.
    """

    reserved_bytes: int
    segments: tuple[_Segment, ...]
    runs: tuple[_Segment, ...]

    @property
    def untouched_bytes(self) -> int:
        """Reserved memory outside of these segments."""
        return max(self.reserved_bytes - sum(segment.size_bytes for segment in self.segments), 0)

    def most(self, workload: Workload, *, finest: bool = True) -> Requests:
        """Return the requests of a run before which all that was reserved had been in use at one time.

        Every segment is asked for as a whole, which makes one of exactly that size, and cut into its pieces
        while no other has room; then what was free is freed.

        Args:
            workload: The run after that.
            finest: Which of the two ways to cut addresses into segments to take.
        """
        blocks = _Blocks()
        rows = _rows_of_blocks(workload)
        placed: dict[int, int] = {}
        freed: list[int] = []
        for segment in self.segments if finest else self.runs:
            if not segment.small:
                blocks.free(blocks.allocate(segment.size_bytes))
            for size_bytes, content in segment.pieces:
                row = rows.get(content, _FREE) if content >= 0 else content
                if row >= 0:
                    placed[row] = blocks.allocate(int(workload.size_bytes[row]))
                    continue
                made = [blocks.allocate(part) for part in _parts(size_bytes, small=segment.small)]
                freed += made if row == _FREE else []
        for part in _cut(self.untouched_bytes, _UNEVEN_BYTES):
            blocks.allocate(part)
        for block in freed:
            blocks.free(block)
        later = ~_baseline(workload)
        later[list(placed)] = False
        return blocks.before(workload, later, placed)


class _Blocks:
    """Blocks that are allocated and freed one after the other."""

    def __init__(self) -> None:
        self._size_bytes: list[int] = []
        self._alloc: list[int] = []
        self._free: list[int] = []
        self._clock = 0

    def allocate(self, size_bytes: int) -> int:
        """Allocate a block that is never freed; return its number."""
        self._clock += 1
        self._size_bytes.append(size_bytes)
        self._alloc.append(self._clock)
        self._free.append(NEVER)
        return len(self._alloc) - 1

    def free(self, block: int) -> None:
        """Free it after all that happened so far."""
        self._clock += 1
        self._free[block] = self._clock

    def before(self, workload: Workload, later: NDArray[np.bool_], placed: dict[int, int]) -> Requests:
        """Return the requests for these blocks and then for the rows of a workload.

        Args:
            workload: The run that follows.
            later: bool, rows that it allocates itself.
            placed: Blocks that its other rows are, by row; it frees them.
        """
        begin_ns = int(workload.alloc_ns.min()) - self._clock - 1
        free = np.array(self._free, np.int64)
        free = np.where(free == NEVER, NEVER, np.minimum(free, self._clock) + begin_ns)
        free[list(placed.values())] = workload.free_ns[list(placed)]
        return make_requests(
            np.concatenate([np.array(self._alloc, np.int64) + begin_ns, workload.alloc_ns[later]]),
            np.concatenate([free, workload.free_ns[later]]),
            np.concatenate([np.array(self._size_bytes, np.int64), workload.size_bytes[later]]),
        )


def least_requests(workload: Workload) -> Requests:
    """Return the requests of a run before which nothing happened but that the memory in use was allocated."""
    baseline = _baseline(workload)
    parts = _cut(int(workload.size_bytes[baseline].sum()), _ROUND_BYTES)
    blocks = _Blocks()
    for part in parts:
        blocks.allocate(part)
    return blocks.before(workload, ~baseline, {})


def start_of(recorded: Recorded) -> Start | None:
    """Rebuild the allocator before the first event of a trace; None where the trace has no totals."""
    device_type, device = recorded.traced_device
    memory, blocks = recorded.trace.memory, recorded.blocks
    events = np.flatnonzero((memory.device_type == device_type) & (memory.device_index == device))
    rows = np.flatnonzero((blocks.device_type == device_type) & (blocks.device_index == device))
    reserved = memory.total_reserved[events]
    if len(events) == 0 or (reserved <= 0).any() or (blocks.address[rows] < 0).any():
        return None
    grew = np.flatnonzero((np.diff(reserved) > 0) & (memory.bytes[events[1:]] > 0)) + 1
    own = ~_inside(blocks.address[rows], memory.address[events[grew]], reserved[grew] - reserved[grew - 1])
    placed = _Placed.of(recorded, rows[own])
    finest, coarsest = (tuple(_segments(placed, finest=finest)) for finest in (True, False))
    return Start(int(reserved[0]), finest, coarsest)


@dataclass(frozen=True)
class _Placed:
    """Blocks with their addresses, ascending."""

    row: NDArray[np.intp]
    begin: Int64
    end: Int64
    before: NDArray[np.bool_]

    @classmethod
    def of(cls, recorded: Recorded, rows: NDArray[np.intp]) -> _Placed:
        blocks = recorded.blocks
        rows = rows[np.argsort(blocks.address[rows], kind="stable")]
        begin = blocks.address[rows]
        return cls(rows, begin, begin + blocks.size_bytes[rows], (blocks.flags[rows] & BORN_BEFORE) != 0)

    def select(self, chosen: NDArray[np.bool_] | slice) -> _Placed:
        return _Placed(self.row[chosen], self.begin[chosen], self.end[chosen], self.before[chosen])


def _inside(address: Int64, begin: Int64, size_bytes: Int64) -> NDArray[np.bool_]:
    """Return which addresses lie in one of some ranges; of ranges with one beginning, the last counts."""
    if len(begin) == 0:
        return np.zeros(len(address), np.bool_)
    order = np.argsort(begin, kind="stable")
    place = np.searchsorted(begin[order], address, side="right") - 1
    found = order[np.maximum(place, 0)]
    return (place >= 0) & (address < begin[found] + size_bytes[found])


def _joined(begin: Int64, end: Int64, *, touching: bool) -> tuple[Int64, Int64]:
    """Join ranges, ascending, that overlap, or touch each other."""
    reach = np.maximum.accumulate(end)
    apart = begin[1:] > reach[:-1] if touching else begin[1:] >= reach[:-1]
    first = np.flatnonzero(np.concatenate([[True], apart]))
    last = np.concatenate([first[1:] - 1, [len(begin) - 1]])
    return begin[first], reach[last]


def _segments(placed: _Placed, *, finest: bool) -> Iterator[_Segment]:
    """Yield the segments of some blocks.

    The device gives memory in pages, so each page belongs to one segment. Small segments are pages. Pages
    that large blocks reach across are of one segment; where that leaves less than any large segment has,
    its neighbours within 20 MiB are taken to be of the same. All pages side by side may be of one, too.
    """
    is_small = placed.end - placed.begin <= _SMALL_BYTES
    for small in (True, False):
        blocks = placed.select(is_small == small)
        if len(blocks.row) == 0:
            continue
        pages = blocks.begin // _PAGE_BYTES * _PAGE_BYTES, -(-blocks.end // _PAGE_BYTES) * _PAGE_BYTES
        begins, ends = _joined(*pages, touching=not (small or finest))
        if not small:
            begins, ends = _of_one_large_segment(begins, ends)
        bounds = np.searchsorted(blocks.begin, np.concatenate([begins, ends[-1:]]))
        for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            yield _segment(blocks.select(slice(bounds[number], bounds[number + 1])), begin, end, small=small)


def _of_one_large_segment(begins: Int64, ends: Int64) -> tuple[Int64, Int64]:
    joined: list[list[int]] = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        last = joined[-1] if joined else None
        if (
            last is not None
            and end - last[0] <= _LARGE_SEGMENT_BYTES
            and min(last[1] - last[0], end - begin) < _SEGMENT_OF_ITS_OWN_BYTES
        ):
            last[1] = end
        else:
            joined.append([begin, end])
    columns = np.array(joined, np.int64)
    return columns[:, 0], columns[:, 1]


def _segment(blocks: _Placed, begin: int, end: int, *, small: bool) -> _Segment:
    """Return a segment, cut by what was in it and what came to be in it; no large one is below 10 MiB."""
    pieces: list[tuple[int, int]] = []

    def fill(until: int, content: int) -> None:
        nonlocal begin
        if until > begin:
            pieces.append((until - begin, content))
            begin = until

    size_bytes = end - begin if small else max(end - begin, _SEGMENT_OF_ITS_OWN_BYTES)
    whole = begin + size_bytes
    older = blocks.select(blocks.before)
    older_blocks = iter(zip(older.begin.tolist(), older.end.tolist(), older.row.tolist(), strict=True))
    block = next(older_blocks, None)
    for used, unused in zip(*_joined(blocks.begin, blocks.end, touching=True), strict=True):
        fill(int(used), _KEPT)
        while block is not None and block[0] < unused:
            fill(block[0], _FREE)
            fill(block[1], block[2])
            block = next(older_blocks, None)
        fill(int(unused), _FREE)
    fill(whole, _KEPT)
    return _Segment(small, size_bytes, tuple(pieces if small else _of_large_pool(pieces)))


def _of_large_pool(pieces: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join what is too small to be a block of a large segment to the next piece without a block."""
    owed = 0
    for size_bytes, content in pieces:
        if content >= 0:
            yield size_bytes, content
        elif size_bytes + owed > _SMALL_BYTES:
            yield size_bytes + owed, content
            owed = 0
        else:
            owed += size_bytes


def _parts(size_bytes: int, *, small: bool) -> Iterator[int]:
    """Cut memory into blocks of its pool."""
    if not small:
        yield size_bytes
        return
    while size_bytes >= _LEAST_BLOCK_BYTES:
        part = min(size_bytes, _SMALL_BYTES)
        yield part
        size_bytes -= part


def _cut(size_bytes: int, part_bytes: int) -> Iterator[int]:
    while size_bytes > 0:
        yield min(size_bytes, part_bytes)
        size_bytes -= part_bytes


def _baseline(workload: Workload) -> NDArray[np.bool_]:
    """Return which rows stand for blocks that the trace does not show (``add_memory_before_trace``)."""
    baseline: NDArray[np.bool_] = (workload.block == MADE_BY_POLICY) & (workload.free_ns == NEVER)
    baseline &= np.isin(workload.category, BASELINE_CATEGORIES)
    baseline &= workload.alloc_ns == workload.alloc_ns.min(initial=NEVER)
    return baseline


def _rows_of_blocks(workload: Workload) -> dict[int, int]:
    """Return the row of each block that was there before the trace, by its row in the BlockTable."""
    older = np.flatnonzero((workload.block >= 0) & ((workload.flags & BORN_BEFORE) != 0))
    return dict(zip(workload.block[older].tolist(), older.tolist(), strict=True))


def _reserved(requests: Requests, options: AllocatorOptions) -> int:
    return replay_requests(requests, options=options).peak_reserved.bytes


@dataclass(frozen=True)
class Warm:
    """A recorded run and the allocator that it began with.

    Attributes:
        start: The allocator before the trace.
        workload: Blocks of the run as it was recorded.
        options: Settings that it was recorded with.
        counted_bytes: What PyTorch's allocator reserved at most while the trace was recorded.
    """

    start: Start
    workload: Workload
    options: AllocatorOptions
    counted_bytes: int

    @cached_property
    def most_bytes(self) -> int:
        """Reserved memory of the replay from the rebuilt start, with the recorded settings."""
        return _reserved(self.start.most(self.workload), self.options)

    @cached_property
    def least_bytes(self) -> int:
        """Reserved memory of the replay from nothing, with the recorded settings."""
        return _reserved(least_requests(self.workload), self.options)

    @property
    def agrees(self) -> bool:
        """Whether the replay from the rebuilt start reserves what was counted."""
        return abs(self.most_bytes - self.counted_bytes) <= _CLOSE * self.counted_bytes

    @property
    def begins_late(self) -> bool:
        """Whether the trace by itself does not explain what was counted."""
        return abs(self.least_bytes - self.counted_bytes) > _CLOSE * self.counted_bytes

    @property
    def why_not(self) -> str:
        """Sentence for a start that cannot be rebuilt."""
        return (
            f"PyTorch's allocator had reserved {format_bytes(self.counted_bytes)} while this trace was "
            f"recorded, but its addresses and totals lead to {format_bytes(self.most_bytes)}: what was held "
            "before the trace began cannot be placed, so it does not show what a change would do"
        )

    @property
    def assumption(self) -> str:
        """Sentence about what the answer to a question about another run rests on."""
        if not self.agrees:
            return f"{self.why_not}; there is no interval"
        before_bytes = self.start.reserved_bytes
        unused_bytes = min(self.start.untouched_bytes, before_bytes)
        return (
            f"PyTorch's allocator had reserved {format_bytes(before_bytes)} when the trace began, of which "
            f"the trace uses {format_bytes(before_bytes - unused_bytes)}; what another setting or script "
            "would have left there is not known: the interval reaches from a run that began with the trace "
            "to one in which all of it had been in use at one time"
        )

    def open(self, workload: Workload, options: AllocatorOptions) -> Open:
        """Return what the memory before the trace leaves open of the run with other settings or another
        script.

        Each bound is corrected by what it misses of the recorded run, in the direction that widens.

        Args:
            workload: Blocks of the run in question.
            options: Settings of the allocator in question.
        """
        unlimited = replace(options, memory_fraction=None)
        # A block's size has slack in it: what was requested may be what a division leaves alone.
        unrounded = replace(unlimited, roundup_power2_divisions=self.options.roundup_power2_divisions)
        least = min(_reserved(least_requests(workload), each) for each in (unlimited, unrounded))
        most = _reserved(self.start.most(workload), unlimited)
        if options.max_split_bytes is not None:  # then large segments serve no small request
            most = max(most, _reserved(self.start.most(workload, finest=False), unlimited))
        return Open(
            min(least, least * self.counted_bytes // max(self.least_bytes, 1)),
            max(most, -(-most * self.counted_bytes // max(self.most_bytes, 1))),
        )


@dataclass(frozen=True)
class Open:
    """Least and largest peak of reserved memory that the memory before a trace leaves open."""

    least_bytes: int
    most_bytes: int


# Searches and reports ask about the same trace again and again.
_starts: WeakKeyDictionary[Recorded, Start | None] = WeakKeyDictionary()


def warm_start_of(recorded: Recorded, workload: Workload) -> Warm | None:
    """Return the start of a run that was recorded on a GPU; None where the trace does not show one.

    Args:
        recorded: The trace.
        workload: Blocks of the run as it was recorded.
    """
    counted = recorded.allocator
    traced = None if counted is None else counted.busiest
    if (
        recorded.origin not in (Origin.FOREIGN_GPU, Origin.RECORDED_GPU)
        or traced is None
        or not len(workload)
    ):
        return None
    if recorded not in _starts:
        _starts[recorded] = start_of(recorded)
    start = _starts[recorded]
    if start is None:
        return None
    return Warm(start, workload, job_settings(recorded.trace).options, traced.peak_reserved_bytes)
