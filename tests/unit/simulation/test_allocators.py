"""The rules of `Allocator`, held against those of the core and two that are written in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
import pytest

from xmem.errors import ConfigError
from xmem.simulation.alloc_conf import parse
from xmem.simulation.bounding import Allocator, AllocatorName, GaugeReplay, replay_through
from xmem.simulation.replay import NEVER, Requests, make_requests, replay
from xmem.testing.reference.caching_allocator import CachingAllocator
from xmem.testing.reference.segments import Block, Device

MIB = 1 << 20
CAPACITY = 256 * MIB
GAUGES = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")


@dataclass
class Bump:
    """The least that an allocator can be: exact sizes, everything given back when nothing is alive."""

    capacity: int = CAPACITY
    live: dict[int, int] = field(default_factory=dict)
    reserved_bytes: int = 0
    next: int = 0

    def allocate(self, size_bytes: int, stream: int) -> int | None:  # noqa: ARG002 (the protocol's)
        if self.reserved_bytes + size_bytes > self.capacity:
            return None
        self.next += 1
        self.live[self.next] = size_bytes
        self.reserved_bytes += size_bytes
        return self.next

    def free(self, handle: int) -> None:
        del self.live[handle]
        self.empty_cache()

    def empty_cache(self) -> None:
        if not self.live:
            self.reserved_bytes = 0

    @property
    def allocated_bytes(self) -> int:
        return sum(self.live.values())

    active_bytes = requested_bytes = allocated_bytes


class Reference:
    """The slow twin of PyTorch's allocator behind the protocol."""

    def __init__(self) -> None:
        self.allocator = CachingAllocator(parse("", "2.13"), Device(CAPACITY))
        self.blocks: dict[int, Block] = {}

    def allocate(self, size_bytes: int, stream: int) -> int | None:
        block = self.allocator.malloc(size_bytes, stream)
        if block is None:
            return None
        self.blocks[id(block)] = block
        return id(block)

    def free(self, handle: int) -> None:
        self.allocator.free(self.blocks.pop(handle))

    def empty_cache(self) -> None:
        self.allocator.empty_cache()

    @property
    def allocated_bytes(self) -> int:
        return self.allocator.gauge("allocated_bytes")

    @property
    def active_bytes(self) -> int:
        return self.allocator.gauge("active_bytes")

    @property
    def reserved_bytes(self) -> int:
        return self.allocator.gauge("reserved_bytes")

    @property
    def requested_bytes(self) -> int:
        return self.allocator.gauge("requested_bytes")


Run = Callable[[Requests], GaugeReplay]


def by_name(name: AllocatorName) -> Run:
    return lambda requests: replay_through(name, requests, capacity_bytes=CAPACITY)


RUNS = {name: by_name(name) for name in get_args(AllocatorName)}
RUNS["python"] = lambda requests: replay_through(Bump(), requests)
RUNS["python_reference"] = lambda requests: replay_through(Reference(), requests)


def random_requests(seed: int, blocks: int = 120, largest: int = 4 * MIB) -> Requests:
    """Everything dies in the end."""
    random = np.random.default_rng(seed)
    begin = random.integers(0, 1000, blocks)
    return make_requests(
        begin,
        begin + random.integers(0, 200, blocks),
        np.exp2(random.uniform(0, np.log2(largest), blocks)).astype(np.int64),
        empty_cache_ns=random.integers(0, 1000, 3),
    )


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("seed", range(5))
class TestConformance:
    def test_gauges_are_ordered_and_end_at_nothing(self, run: Run, seed: int) -> None:
        requests = random_requests(seed)
        done = run(requests)
        assert done.out_of_memory is None
        allocated, active, reserved, requested = (getattr(done.timeline, gauge) for gauge in GAUGES)
        assert len(allocated) == len(requests)
        assert (requested <= allocated).all()
        assert (allocated <= active).all()
        assert (active <= reserved).all()
        assert allocated[-1] == active[-1] == requested[-1] == 0

    def test_requested_bytes_are_those_of_the_living(self, run: Run, seed: int) -> None:
        requests = random_requests(seed)
        change = np.array([1, -1, 0])[requests.kind] * requests.size_bytes[requests.block]
        assert np.array_equal(run(requests).timeline.requested_bytes, np.cumsum(change))

    def test_peaks_are_those_of_the_timeline(self, run: Run, seed: int) -> None:
        done = run(random_requests(seed))
        for gauge in GAUGES:
            column = getattr(done.timeline, gauge)
            peak = getattr(done, f"peak_{gauge.removesuffix('_bytes')}")
            assert (peak.bytes, peak.request) == (column.max(), np.argmax(column))

    def test_same_requests_same_answers(self, run: Run, seed: int) -> None:
        first, second = run(random_requests(seed)), run(random_requests(seed))
        assert np.array_equal(first.timeline.reserved_bytes, second.timeline.reserved_bytes)


@pytest.mark.parametrize("name", get_args(AllocatorName))
def test_peaks_need_no_timeline(name: AllocatorName) -> None:
    requests = random_requests(3)
    kept = replay_through(name, requests)
    peaks_alone = replay_through(name, requests, keep_timeline=False)
    assert len(peaks_alone.timeline.reserved_bytes) == 0 < len(kept.timeline.reserved_bytes)
    assert peaks_alone.peak_reserved == kept.peak_reserved
    assert peaks_alone.peak_active == kept.peak_active


@pytest.mark.parametrize("name", [name for name in RUNS if "reuse" not in name])
def test_a_request_that_fails_is_the_last_one(name: str) -> None:
    requests = make_requests([0, 1, 2], [NEVER, NEVER, NEVER], [100 * MIB, 200 * MIB, MIB])
    done = RUNS[name](requests)
    assert done.out_of_memory == 1
    assert len(done.timeline.reserved_bytes) == 2
    assert done.timeline.requested_bytes.tolist() == [100 * MIB, 100 * MIB]


def test_the_twin_behind_the_protocol_does_what_the_core_does() -> None:
    requests = random_requests(7)
    slow, fast = replay_through(Reference(), requests), replay(requests, capacity_bytes=CAPACITY)
    for gauge in GAUGES:
        assert np.array_equal(getattr(slow.timeline, gauge), getattr(fast.timeline, gauge)), gauge


@pytest.mark.parametrize(
    "conf", ["", "expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:20"]
)
@pytest.mark.parametrize("seed", range(10))
def test_the_bounds_enclose_the_caching_allocator(conf: str, seed: int) -> None:
    requests, options = random_requests(seed, largest=64 * MIB), parse(conf, "2.13")
    least = replay_through("perfect_reuse", requests, options=options).peak_reserved.bytes
    most = replay_through("never_reuse", requests, options=options).peak_reserved.bytes
    assert least <= replay(requests, options=options).peak_reserved.bytes <= most


def test_an_object_is_recognised_by_the_protocol() -> None:
    assert isinstance(Bump(), Allocator)
    assert not isinstance(object(), Allocator)


def test_a_name_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="bfc"):
        replay_through("jemalloc", random_requests(0))  # type: ignore[arg-type]


def test_no_requests() -> None:
    for run in RUNS.values():
        done = run(make_requests([], [], []))
        assert (done.peak_reserved.bytes, done.peak_reserved.request) == (0, -1)
