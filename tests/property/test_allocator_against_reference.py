"""The core's allocator against the slow reference, request by request, on random histories.

XMEM_HYPOTHESIS_EXAMPLES sets the number of histories a test (default 200).
"""

import os
from dataclasses import replace
from functools import partial

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.replay import (
    FREE_AT_CHECKPOINT,
    NEVER,
    Alternatives,
    DeviceAction,
    Replay,
    RequestKind,
    Requests,
    make_requests,
    replay,
)
from xmem.testing.reference.caching_allocator import CachingAllocator
from xmem.testing.reference.segments import UNLIMITED, Block, Checkpoint, Device

MIB = 1 << 20
OTHER_STREAM = 77  # none that a block is allocated on
GAUGES = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")

histories = settings(
    max_examples=int(os.environ.get("XMEM_HYPOTHESIS_EXAMPLES", "200")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

# Around every threshold: 512 B, 1 MiB, 2 MiB, 10 MiB, 20 MiB; few distinct sizes, so that ties happen.
sizes = st.one_of(
    st.sampled_from([1, 511, 512, 513, 4096, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB, 5 * MIB, 8 * MIB]),
    st.sampled_from([9 * MIB, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 11 * MIB, 16 * MIB]),
    st.sampled_from([20 * MIB, 20 * MIB + 1, 24 * MIB, 30 * MIB, 41 * MIB, 60 * MIB]),
    st.integers(1, 64 * MIB),
)
options = st.builds(
    AllocatorOptions,
    tie_break=st.sampled_from(["address", "object_age", "segment_age"]),
    large_segment_bytes=st.sampled_from([20 * MIB, 12 * MIB, 50 * MIB]),
    max_split_bytes=st.one_of(st.none(), st.sampled_from([50 * MIB, 64 * MIB])),
    max_non_split_rounding_bytes=st.sampled_from([20 * MIB, 30 * MIB]),
    roundup_power2_divisions=st.one_of(
        st.just((0,) * 16), st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=16, max_size=16).map(tuple)
    ),
    garbage_collection_threshold=st.sampled_from([0.0, 0.0, 0.3, 0.8]),
    expandable_segments=st.booleans(),
    memory_fraction=st.sampled_from([None, None, 0.5, 0.95, 1.0]),
    throw_on_cudamalloc_oom=st.sampled_from([False, False, False, True]),
    newest_scope_first=st.booleans(),
    every_scope_captures=st.booleans(),
    sizes_with_slack=st.sampled_from([False, False, True]),
)
capacities = st.sampled_from([48 * MIB, 100 * MIB, 101 * MIB, 150 * MIB, 256 * MIB])


@st.composite
def requests(draw: st.DrawFn) -> Requests:
    """Blocks of random lifetimes on one or two streams, and a few emptied caches."""
    count = draw(st.integers(1, 40))
    horizon = 3 * count
    alloc = draw(st.lists(st.integers(0, horizon), min_size=count, max_size=count))
    length = st.one_of(st.integers(0, 12), st.integers(0, horizon), st.none())
    lengths = draw(st.lists(length, min_size=count, max_size=count))
    free = [NEVER if n is None else a + n for a, n in zip(alloc, lengths, strict=True)]
    size = draw(st.lists(sizes, min_size=count, max_size=count))
    stream = draw(st.lists(st.sampled_from([0, 0, 0, 9, 5]), min_size=count, max_size=count))
    emptied = draw(st.lists(st.integers(0, horizon), max_size=3))
    return make_requests(alloc, free, size, stream, empty_cache_ns=emptied)


@st.composite
def requests_with_uses(draw: st.DrawFn) -> Requests:
    """The same, and some blocks are used on another stream right after they are allocated."""
    made = draw(requests())
    used = draw(st.sets(st.integers(0, len(made.size_bytes) - 1)))
    rows = np.flatnonzero((made.kind == RequestKind.ALLOC) & np.isin(made.block, list(used))) + 1
    return replace(
        made,
        kind=np.insert(made.kind, rows, RequestKind.RECORD_STREAM),
        block=np.insert(made.block, rows, made.block[rows - 1]),
        time_ns=np.insert(made.time_ns, rows, made.time_ns[rows - 1]),
    )


@st.composite
def requests_with_alternatives(draw: st.DrawFn) -> Requests:
    """The same, and some blocks take the first of a few sizes that fits, as convolutions do."""
    made = draw(requests_with_uses())
    blocks = len(made.size_bytes)
    lists = draw(st.lists(st.lists(st.one_of(sizes, st.just(0)), min_size=1, max_size=4), max_size=4))
    lists = [[first, *others] for first, *others in lists if first]
    which = st.integers(-1, len(lists) - 1)
    number = np.array(draw(st.lists(which, min_size=blocks, max_size=blocks)), np.int32)
    first = np.array([choice[0] for choice in lists], np.int64)
    return replace(
        made,
        size_bytes=np.where(number >= 0, first[number], made.size_bytes) if lists else made.size_bytes,
        alternatives=Alternatives(
            number,
            np.cumsum([0, *map(len, lists)], dtype=np.int64),
            np.array([size for choice in lists for size in choice], np.int64),
        ),
    )


POOL_CALLS = [kind for kind in RequestKind if RequestKind.BEGIN_POOL <= kind <= RequestKind.FORBID_POOL_SPLIT]
RESTORED_POOL = 100  # none of those that calls are about


@st.composite
def requests_with_pools(draw: st.DrawFn) -> Requests:
    """The same, and calls about up to three private pools at a time, as programs may make them."""
    made = draw(st.one_of(requests_with_uses(), requests_with_alternatives()))
    call = st.tuples(st.integers(0, len(made)), st.sampled_from(POOL_CALLS), st.integers(0, 2))
    calls = sorted(draw(st.lists(call, max_size=16)), key=lambda call: call[0])
    program = PoolProgram()
    valid = [
        (at, kind, number) for at, kind, slot in calls if (number := program.call(kind, slot)) is not None
    ]
    at = [row for row, _, _ in valid]
    return replace(
        made,
        kind=np.insert(made.kind, at, [kind for _, kind, _ in valid]),
        block=np.insert(made.block, at, [number for _, _, number in valid]),
        time_ns=np.insert(made.time_ns, at, [0 for _ in valid]),
    )


@st.composite
def requests_with_checkpoints(draw: st.DrawFn) -> Requests:
    """The same, and some blocks say their pool; one such pool is put back to a checkpoint once or twice.

    As programs do, all blocks of that pool are freed before, and most pieces are asked for again.
    """
    made = draw(requests_with_pools())
    in_pool = st.sampled_from([-1, -1, 0, RESTORED_POOL, RESTORED_POOL])
    count = len(made.size_bytes)
    mempool = np.array(draw(st.lists(in_pool, min_size=count, max_size=count)), np.int32)
    history = _Restoring(made, mempool)
    places = sorted(draw(st.lists(st.integers(0, len(made)), min_size=2, max_size=4)))
    for row in range(len(made) + 1):
        for which, place in enumerate(places):
            if place == row:
                if which == 0:
                    history.take_checkpoint()
                else:
                    history.go_back(draw)
        if row < len(made):
            history.copy(row)
    return history.finish()


class _Restoring:
    """Requests copied one by one, with checkpoints and ways back between them."""

    def __init__(self, made: Requests, mempool: np.ndarray) -> None:
        self.made = made
        self.mempool = mempool.tolist()
        self.size = made.size_bytes.tolist()
        self.stream = made.stream.tolist()
        self.restores = [-1] * len(self.size)
        self.rows: list[tuple[int, int]] = []
        self.live: list[int] = []
        self.gone: set[int] = set()
        self.checkpoints: list[list[int]] = []

    def copy(self, row: int) -> None:
        kind, block = int(self.made.kind[row]), int(self.made.block[row])
        about_block = kind in (RequestKind.FREE, RequestKind.RECORD_STREAM)
        if about_block and block in self.gone:
            return
        if kind == RequestKind.ALLOC and self.mempool[block] == RESTORED_POOL:
            self.live.append(block)
        elif kind == RequestKind.FREE and block in self.live:
            self.live.remove(block)
        self.rows.append((kind, block))

    def take_checkpoint(self) -> None:
        self.checkpoints.append(list(self.live))
        self.rows.append((RequestKind.CHECKPOINT_POOL, RESTORED_POOL))

    def go_back(self, draw: st.DrawFn) -> None:
        number = len(self.checkpoints) - 1
        for block in self.live:
            self.rows.append((RequestKind.FREE, block))
            self.gone.add(block)
        self.live = []
        originals = [block for block in self.checkpoints[number] if draw(st.integers(0, 9)) > 0]
        wanted = [*originals, *[FREE_AT_CHECKPOINT] * draw(st.integers(0, 3))]
        freed = []
        for original in draw(st.permutations(wanted)):
            block = len(self.size)
            self.size.append(self.size[original] if original >= 0 else draw(sizes))
            self.stream.append(0)
            self.mempool.append(RESTORED_POOL)
            self.restores.append(original)
            self.rows.append((RequestKind.ALLOC, block))
            (self.live if original >= 0 else freed).append(block)
            if draw(st.booleans()):
                self.rows.append((RequestKind.RESTORE_SEGMENT, number))
        self.rows.append((RequestKind.RESTORE_POOL, number))
        self.rows += [(RequestKind.FREE, block) for block in freed]
        if draw(st.booleans()):
            self.take_checkpoint()

    def finish(self) -> Requests:
        none = np.full(len(self.size) - len(self.made.size_bytes), -1, np.int32)
        alternatives = self.made.alternatives
        if len(alternatives.list):
            alternatives = replace(alternatives, list=np.concatenate([alternatives.list, none]))
        return Requests(
            np.array([kind for kind, _ in self.rows], np.uint8),
            np.array([block for _, block in self.rows], np.int32),
            np.zeros(len(self.rows), np.int64),
            np.array(self.size, np.int64),
            np.array(self.stream, np.int64),
            alternatives,
            np.array(self.mempool, np.int32),
            np.array(self.restores, np.int32),
        )


class PoolProgram:
    """Which calls about private pools PyTorch takes; a pool without users is never used again."""

    def __init__(self) -> None:
        self.number = [1, 2, 3]
        self.users = [0, 0, 0]
        self.open = [False, False, False]
        self.released: list[int] = []

    def call(self, kind: RequestKind, slot: int) -> int | None:
        """The number of the pool that the call is about, None where the call would fail."""
        number = self.number[slot]
        if kind == RequestKind.EMPTY_POOL:
            return self.released[-1] if self.released and not any(self.open) else None
        if kind in (RequestKind.BEGIN_POOL, RequestKind.BEGIN_CAPTURE):
            if self.open[slot]:
                return None
            self.open[slot] = True
            self.users[slot] += 1
        elif kind == RequestKind.END_POOL:
            if not self.open[slot]:
                return None
            self.open[slot] = False
        elif kind == RequestKind.RETAIN_POOL:
            self.users[slot] += 1
        elif kind == RequestKind.RELEASE_POOL:
            if self.users[slot] == 0 or (self.users[slot] == 1 and self.open[slot]):
                return None
            self.users[slot] -= 1
            if self.users[slot] == 0:
                self.released.append(number)
                self.number[slot] += 3
        return number


class Reference:
    """The reference allocator, fed with requests; failed blocks are dropped."""

    def __init__(
        self, requests: Requests, options: AllocatorOptions, capacity: int, *, ascending: bool = False
    ) -> None:
        self.requests = requests
        self.allocator = CachingAllocator(options, Device(capacity, descending=not ascending))
        self.live: dict[int, Block] = {}
        self.fitting: dict[int, int] = {}  # by list of alternatives, the size that was taken last
        self.placed: dict[int, tuple[int, int]] = {}
        self.failed: list[int] = []
        self.checkpoints: list[list[tuple[Checkpoint, list[int | None]]]] = []
        self.awaited: list[int] = []
        self.restored: set[int] = set()

    def step(self, index: int) -> None:
        block = int(self.requests.block[index])
        kind = self.requests.kind[index]
        if kind == RequestKind.EMPTY_CACHE:
            self.allocator.empty_cache()
        elif kind == RequestKind.FREE:
            if block in self.live:
                self.allocator.free(self.live.pop(block))
        elif kind == RequestKind.RECORD_STREAM:
            if block in self.live:
                self.allocator.record_stream(self.live[block], OTHER_STREAM)
        elif kind in POOL_CALLS:
            self.call_pool(RequestKind(kind), block)
        elif kind == RequestKind.CHECKPOINT_POOL:
            self.take_checkpoint(block)
        elif kind in (RequestKind.RESTORE_SEGMENT, RequestKind.RESTORE_POOL):
            self.restore(index, block, kind == RequestKind.RESTORE_POOL)
        elif len(self.requests.restores) and self.requests.restores[block] != -1:
            self.awaited.append(block)
        else:
            self.allocate(index, block)

    def take_checkpoint(self, pool: int) -> None:
        owner = {id(found): block for block, found in self.live.items()}
        self.checkpoints.append(
            [
                (segment, [owner.get(id(piece)) for _, piece in segment[1]])
                for segment in self.allocator.checkpoint_pool(pool)
            ]
        )

    def restore(self, index: int, number: int, everything: bool) -> None:
        """Segments by number of their place in the checkpoint; pieces that nobody claimed are freed."""
        checkpoint = self.checkpoints[number]
        unclaimed: dict[int, list[Block | None]] = {}

        def put_back(at: int) -> None:
            if at not in self.restored:
                self.restored.add(at)
                unclaimed[at] = list(self.allocator.restore_segment(checkpoint[at][0]))

        def claim(block: int, at: int, piece: int) -> bool:
            found = unclaimed[at][piece] if piece < len(unclaimed.get(at, [])) else None
            if found is None:
                return False
            unclaimed[at][piece] = None
            self.live[block] = found
            self.placed[block] = (found.address, found.size)
            return True

        def claim_free(block: int) -> bool:
            return any(
                claim(block, at, piece)
                for at in sorted(unclaimed)
                for piece, (_, old) in enumerate(checkpoint[at][0][1])
                if old is None
            )

        restores = self.requests.restores
        for block in self.awaited:
            for at, (_, owners) in enumerate(checkpoint):
                if restores[block] in owners and restores[block] >= 0:
                    put_back(at)
                    claim(block, at, owners.index(int(restores[block])))
        for block in self.awaited:
            if restores[block] != FREE_AT_CHECKPOINT or claim_free(block):
                continue
            free = [
                at
                for at, (segment, _) in enumerate(checkpoint)
                if at not in self.restored and [old for _, old in segment[1]] == [None]
            ]
            exact = [at for at in free if checkpoint[at][0][1][0][0] == self.requests.size_bytes[block]]
            if free:
                put_back((exact or free)[-1 if exact else 0])
                claim_free(block)
        if everything:
            for at in range(len(checkpoint)):
                put_back(at)
            self.restored.clear()
        for at in sorted(unclaimed):
            for piece in unclaimed[at]:
                if piece is not None:
                    self.allocator.free(piece)
        for block in self.awaited:
            if block in self.live:
                continue
            if restores[block] == FREE_AT_CHECKPOINT:
                self.placed[block] = (-1, 0)
            else:
                self.try_size(block, int(self.requests.size_bytes[block]), index)
        self.awaited.clear()

    def try_size(self, block: int, size: int, index: int) -> bool:
        self.allocator.process_events()
        pools = self.requests.mempool
        said = int(pools[block]) if len(pools) and pools[block] >= 0 else None
        found = self.allocator.malloc(size, int(self.requests.stream[block]), said)
        if found is None:
            if self.failed[-1:] != [index]:
                self.failed.append(index)
            return False
        self.live[block] = found
        self.placed[block] = (found.address, found.size)
        return True

    def allocate(self, index: int, block: int) -> None:
        alternatives = self.requests.alternatives
        number = int(alternatives.list[block]) if len(alternatives.list) else -1
        if number < 0:
            sizes = [int(self.requests.size_bytes[block])]
        else:
            sizes = [self.fitting[number]] if number in self.fitting else []
            sizes += alternatives.sizes_of(number).tolist()
        for size in sizes:
            if size == 0:
                self.placed[block] = (-1, 0)
            else:
                self.allocator.process_events()
                pools = self.requests.mempool
                said = int(pools[block]) if len(pools) and pools[block] >= 0 else None
                found = self.allocator.malloc(size, int(self.requests.stream[block]), said)
                if found is None:
                    continue
                self.live[block] = found
                self.placed[block] = (found.address, found.size)
            self.fitting[number] = size
            return
        self.failed.append(index)

    def call_pool(self, kind: RequestKind, number: int) -> None:
        if kind == RequestKind.USE_POOL_ON_OOM:
            self.allocator.private[number].use_on_oom = True
        elif kind == RequestKind.FORBID_POOL_SPLIT:
            self.allocator.private[number].split = False
        else:
            getattr(self.allocator, kind.name.lower())(number)

    def segments(self) -> list[tuple[int, int, int, int]]:
        """Address, size, stream and private pool of each mapped stretch."""
        stretches: list[tuple[int, int, int, int]] = []
        for segment in sorted(self.allocator.segments, key=lambda s: s.address):
            touching = False
            for block in segment.blocks:
                if block.state == "unmapped":
                    touching = False
                elif touching:
                    address, size, stream, mempool = stretches[-1]
                    stretches[-1] = (address, size + block.size, stream, mempool)
                else:
                    stretches.append((block.address, block.size, segment.stream, segment.mempool))
                    touching = True
        return stretches

    def blocks(self) -> list[tuple[int, int, bool]]:
        """Address, size and whether it is free, of each mapped block."""
        return sorted(
            (b.address, b.size, b.state == "free")
            for segment in self.allocator.segments
            for b in segment.blocks
            if b.state != "unmapped"
        )


def events_of(result: Replay) -> list[tuple[str, int, int, int, int]]:
    e = result.events
    columns = (e.address, e.size_bytes, e.stream, e.mempool)
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    return [
        (DeviceAction(action).name.lower(), *row)
        for action, row in zip(e.action.tolist(), numbers, strict=True)
    ]


def require_equal_state(result: Replay, reference: Reference) -> None:
    state = result.state
    columns = (state.segment_address, state.segment_bytes, state.segment_stream, state.segment_mempool)
    segments = zip(*columns, strict=True)
    assert [tuple(map(int, s)) for s in segments] == reference.segments()
    blocks = zip(state.block_address, state.block_bytes, state.block_state == 0, strict=True)
    assert [(int(a), int(n), bool(f)) for a, n, f in blocks] == reference.blocks()


@histories
@given(
    st.one_of(requests_with_pools(), requests_with_checkpoints()),
    options,
    st.one_of(st.none(), capacities),
    st.booleans(),
    st.data(),
)
def test_core_and_reference_agree(
    requests: Requests,
    options: AllocatorOptions,
    capacity: int | None,
    ascending: bool,
    data: st.DataObject,
) -> None:
    if capacity is None:
        options = replace(options, memory_fraction=None)
    replayed = partial(
        replay,
        requests,
        options=options,
        capacity_bytes=capacity,
        ascending_addresses=ascending,
        on_oom="drop",
    )
    result = replayed()
    look = data.draw(st.integers(-1, len(requests) - 1), label="look closely after request")
    close = replayed(until=look)

    reference = Reference(requests, options, UNLIMITED if capacity is None else capacity, ascending=ascending)
    for index in range(len(requests)):
        if index == look + 1:
            require_equal_state(close, reference)
            require_equal_statistics(close, reference)
        reference.step(index)
        for gauge in GAUGES:
            assert getattr(result.timeline, gauge)[index] == reference.allocator.gauge(gauge), (index, gauge)
    assert events_of(result) == reference.allocator.events
    assert [failure.request for failure in result.failures] == reference.failed
    require_equal_state(result, reference)
    require_equal_statistics(result, reference)
    for block, (address, size) in reference.placed.items():
        assert (result.placement.address[block], result.placement.size_bytes[block]) == (address, size)


def require_equal_statistics(result: Replay, reference: Reference) -> None:
    expected = {name: reference.allocator.statistics[name] for name in result.statistics}
    assert dict(result.statistics) == expected


@histories
@given(requests(), options, capacities)
def test_laws_that_need_no_reference(requests: Requests, options: AllocatorOptions, capacity: int) -> None:
    result = replay(requests, options=options, capacity_bytes=capacity, on_oom="drop")
    timeline = result.timeline
    assert np.all(timeline.requested_bytes <= timeline.active_bytes)
    assert np.all(timeline.active_bytes <= timeline.reserved_bytes)
    assert np.all(timeline.allocated_bytes == timeline.active_bytes)  # nothing waits for another stream
    assert np.all(timeline.reserved_bytes <= capacity)
    assert result.state.segment_bytes.sum() == timeline.reserved_bytes[-1:].sum()
    assert result.state.block_bytes.sum() == result.state.segment_bytes.sum()
    for gauge in GAUGES:
        peak = getattr(result, f"peak_{gauge.removesuffix('_bytes')}")
        assert peak.bytes == result.statistics[f"{gauge}.all.peak"]
        assert peak.bytes >= getattr(timeline, gauge).max(initial=0)


@histories
@given(requests(), options)
def test_everything_freed_and_emptied_leaves_nothing(requests: Requests, options: AllocatorOptions) -> None:
    options = replace(options, memory_fraction=None)
    ends = make_requests(
        np.arange(len(requests.size_bytes)),
        np.full(len(requests.size_bytes), 1000),
        requests.size_bytes,
        requests.stream,
        empty_cache_ns=[2000],
    )
    before = replay(ends, options=options, until=len(ends) - 2)
    assert before.timeline.active_bytes[-1] == 0
    assert np.all(before.state.block_state == 0)
    after = replay(ends, options=options)
    if not options.expandable_segments:
        assert after.timeline.reserved_bytes[-1] == 0
        assert len(after.state.segment_address) == 0
    assert after.timeline.active_bytes[-1] == 0


@histories
@given(requests(), options)
def test_a_device_as_large_as_the_peak_serves_the_same(requests: Requests, options: AllocatorOptions) -> None:
    options = replace(options, memory_fraction=None, expandable_segments=False)
    unlimited = replay(requests, options=options)
    pages = -(-unlimited.peak_reserved.bytes // (2 * MIB)) * 2 * MIB
    if options.large_segment_bytes == 20 * MIB and pages > 0:
        limited = replay(requests, options=options, capacity_bytes=pages)
        assert limited.oom is None
        assert limited.peak_reserved == unlimited.peak_reserved
