from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmem.errors import ConfigError
from xmem.simulation.alloc_conf import AllocatorOptions, TieBreak, parse
from xmem.simulation.bounding import replay_through
from xmem.simulation.replay import (
    NEVER,
    Alternatives,
    BlockState,
    DeviceAction,
    RequestKind,
    make_requests,
    replay,
)
from xmem.simulation.several_settings import peaks_reserved

MIB = 1 << 20


def test_requests_are_ordered_by_time_and_frees_come_first() -> None:
    requests = make_requests([5, 1], [9, 5], [100, 200])
    assert requests.kind.tolist() == [
        RequestKind.ALLOC,
        RequestKind.FREE,
        RequestKind.ALLOC,
        RequestKind.FREE,
    ]
    assert requests.block.tolist() == [1, 1, 0, 0]
    assert requests.time_ns.tolist() == [1, 5, 5, 9]
    assert (requests.kind.dtype, requests.block.dtype) == (np.uint8, np.int32)


def test_columns_are_read_only_and_keep_their_owner_alive() -> None:
    timeline = replay(make_requests([0], [NEVER], [100])).timeline
    assert timeline.reserved_bytes.tolist() == [2 * MIB]
    with pytest.raises(ValueError, match="read-only"):
        timeline.reserved_bytes[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        make_requests([0], [NEVER], [100]).size_bytes[0] = 1


def test_the_order_of_requests_decides_what_is_reserved() -> None:
    ascending = make_requests([0, 2], [1, 3], [78 * MIB, 118 * MIB])
    descending = make_requests([0, 2], [1, 3], [118 * MIB, 78 * MIB])
    assert replay(ascending).peak_reserved.bytes == 196 * MIB
    assert replay(descending).peak_reserved.bytes == 118 * MIB


def test_a_replay_carries_its_evidence() -> None:
    result = replay(make_requests([0, 1], [5, NEVER], [30 * MIB, 100]), capacity_bytes=64 * MIB)
    assert result.oom is None
    assert (result.peak_allocated.bytes, result.peak_allocated.request) == (30 * MIB + 512, 1)
    assert result.events.action.tolist() == [DeviceAction.SEGMENT_ALLOC] * 2
    assert result.events.size_bytes.tolist() == [30 * MIB, 2 * MIB]
    assert result.events.request.tolist() == [0, 1]
    assert result.placement.segment.tolist() == [0, 1]
    assert result.placement.size_bytes.tolist() == [30 * MIB, 512]
    assert result.statistics["reserved_bytes.all.peak"] == 32 * MIB
    assert result.statistics["segment.large_pool.current"] == 1
    state = result.state
    assert state.block_state.tolist() == [BlockState.FREE, BlockState.ALLOCATED, BlockState.FREE]
    assert state.block.tolist() == [-1, 1, -1]
    assert state.block_requested_bytes.tolist() == [0, 100, 0]


def test_out_of_memory_is_a_result() -> None:
    result = replay(
        make_requests([0, 1, 2], [NEVER] * 3, [40 * MIB, 70 * MIB, 100]), capacity_bytes=100 * MIB
    )
    assert result.oom is not None
    assert result.oom.request == 1
    assert result.oom.requested_bytes == result.oom.rounded_bytes == 70 * MIB
    assert result.oom.device_free_bytes == 60 * MIB
    assert len(result.timeline.reserved_bytes) == 2


def test_a_replay_may_go_on_without_what_fails() -> None:
    requests = make_requests([0, 1, 2], [9, 9, 9], [40 * MIB, 70 * MIB, 60 * MIB])
    result = replay(requests, capacity_bytes=100 * MIB, on_oom="drop")
    assert [failure.request for failure in result.failures] == [1]
    assert len(result.timeline.reserved_bytes) == len(requests)
    assert result.placement.address[1] == -1
    assert result.peak_allocated.bytes == 100 * MIB


def test_what_others_hold_leaves_less() -> None:
    requests = make_requests([0], [NEVER], [60 * MIB])
    assert replay(requests, capacity_bytes=100 * MIB).oom is None
    assert replay(requests, capacity_bytes=100 * MIB, other_bytes=50 * MIB).oom is not None


def test_the_state_at_the_peak() -> None:
    requests = make_requests([0, 1, 3], [2, 4, NEVER], [30 * MIB, 40 * MIB, 100])
    whole = replay(requests)
    at_peak = replay(requests, until=whole.peak_allocated.request)
    assert sorted(at_peak.state.block[at_peak.state.block >= 0].tolist()) == [0, 1]
    assert at_peak.timeline.allocated_bytes[-1] == whole.peak_allocated.bytes


def test_an_emptied_cache_gives_segments_back() -> None:
    requests = make_requests([0, 9], [1, NEVER], [30 * MIB, 40 * MIB], empty_cache_ns=[5])
    assert requests.kind.tolist() == [0, 1, RequestKind.EMPTY_CACHE, 0]
    assert replay(requests).peak_reserved.bytes == 40 * MIB


def test_streams_share_nothing() -> None:
    requests = make_requests([0, 2], [1, 3], [16 * MIB, 16 * MIB], stream=[0, 7])
    assert replay(requests).peak_reserved.bytes == 32 * MIB


def test_settings_reach_the_allocator() -> None:
    requests = make_requests([0], [NEVER], [30 * MIB])
    result = replay(requests, options=parse("expandable_segments:True"), capacity_bytes=200 * MIB)
    assert result.events.action.tolist() == [DeviceAction.SEGMENT_MAP]
    assert result.peak_reserved.bytes == 40 * MIB
    assert result.state.segment_expandable.tolist() == [1]


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 40 << 20)), min_size=1, max_size=40
    ),
    st.sampled_from(("address", "object_age", "segment_age")),
)
def test_runs_without_private_pools_do_not_notice_whose_scope_is_first(
    blocks: list[tuple[int, int, int]], tie_break: TieBreak
) -> None:
    begin, length, size = np.array(blocks, np.int64).T
    requests = make_requests(begin, begin + length, size)
    assert not requests.uses_private_pools
    each = [
        AllocatorOptions(tie_break=tie_break, newest_scope_first=newest, every_scope_captures=every)
        for newest in (False, True)
        for every in (False, True)
    ]
    assert len({options.as_without_private_pools() for options in each}) == 1
    assert len(set(peaks_reserved(requests, each))) == 1


def test_blocks_of_a_private_pool_are_noticed() -> None:
    assert make_requests([1, 2], [3, 4], [512, 512], mempool=[0, 1]).uses_private_pools
    assert not make_requests([1, 2], [3, 4], [512, 512], mempool=[0, 0]).uses_private_pools


def test_long_runs_with_several_settings_are_replayed_as_each_alone() -> None:
    begin = np.arange(120_000)
    size = 512 * (1 + begin * 7919 % 4001)
    requests = make_requests(begin, begin + 1 + begin % 97, size)
    each = [
        AllocatorOptions(),
        AllocatorOptions(tie_break="address"),
        AllocatorOptions(expandable_segments=True),
    ]
    assert len(requests) > 100_000
    found = peaks_reserved(requests, each)
    assert found == [replay(requests, options=options).peak_reserved.bytes for options in each]
    assert len(set(found)) > 1


def test_no_blocks_at_all() -> None:
    result = replay(make_requests([], [], []))
    assert result.peak_reserved.bytes == 0
    assert result.peak_reserved.request == -1
    assert len(result.timeline.reserved_bytes) == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0], [1], [-5]), "block 0 has an invalid size of -5 bytes"),
        (([0, 7], [1, 3], [8, 8]), "block 1 is allocated at 7 ns and freed before that, at 3 ns"),
        (([0, 1], [1], [8]), "one allocation time"),
        (([0.5], [1], [8]), "one integer for each block"),
        (([[0]], [1], [8]), "one integer for each block"),
    ],
)
def test_lifetimes_that_cannot_be_are_refused(columns: tuple[list[int], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_requests(*columns)


def test_settings_that_cannot_be_are_refused() -> None:
    requests = make_requests([0], [NEVER], [8])
    with pytest.raises(ConfigError, match="stream has 2 values, not 1; give one for each block"):
        make_requests([0], [NEVER], [8], stream=[0, 1])
    with pytest.raises(ConfigError, match="pass capacity_bytes"):
        replay(requests, options=AllocatorOptions(memory_fraction=0.5))
    with pytest.raises(ConfigError, match="capacity"):
        replay(requests, capacity_bytes=0)
    with pytest.raises(ConfigError, match="index of a request"):
        replay(requests, until=5)
    with pytest.raises(ConfigError, match="10 MiB"):
        replay(requests, options=AllocatorOptions(large_segment_bytes=MIB))


def alternatives(block_lists: list[int], *lists: list[int]) -> Alternatives:
    """The list of each block, and the lists."""
    return Alternatives(
        np.array(block_lists, np.int32),
        np.cumsum([0, *map(len, lists)], dtype=np.int64),
        np.array([size for sizes in lists for size in sizes], np.int64),
    )


def test_the_first_alternative_is_taken_where_memory_has_no_end() -> None:
    requests = make_requests([0, 1], [5, 2], [30 * MIB, 1], alternatives=alternatives([-1, 0], [60 * MIB, 0]))
    result = replay(requests)
    assert requests.size_bytes.tolist() == [30 * MIB, 60 * MIB]
    assert result.peak_reserved.bytes == 90 * MIB
    assert result.statistics["num_alloc_retries"] == 0


def test_the_next_alternative_is_tried_after_all_caches_were_flushed() -> None:
    sizes = alternatives([-1, -1, 0, 0], [80 * MIB, 70 * MIB, 30 * MIB, 0])
    requests = make_requests([0, 1, 3, 6], [2, NEVER, 5, 8], [40 * MIB, 40 * MIB, 1, 1], alternatives=sizes)
    result = replay(requests, capacity_bytes=100 * MIB)
    assert result.oom is None
    # the free block of 40 MiB went back at the first attempt; the next use begins with the third size
    assert result.statistics["num_ooms"] == 2
    assert result.placement.size_bytes.tolist() == [40 * MIB, 40 * MIB, 30 * MIB, 30 * MIB]
    assert result.peak_reserved.bytes == 80 * MIB
    closed = result.events.action == DeviceAction.SEGMENT_FREE
    assert result.events.size_bytes[closed].tolist() == [40 * MIB]


def test_an_alternative_that_no_longer_fits_sends_the_next_use_through_the_whole_list() -> None:
    sizes = alternatives([0, -1, 0], [60 * MIB, 20 * MIB])
    requests = make_requests([0, 2, 3], [1, NEVER, 5], [1, 60 * MIB, 1], alternatives=sizes)
    result = replay(requests, capacity_bytes=100 * MIB)
    assert result.placement.size_bytes.tolist() == [60 * MIB, 60 * MIB, 20 * MIB]
    assert (
        result.statistics["num_ooms"] == 2
    )  # the one that fitted before, and the first of the list: the same


def test_an_alternative_of_nothing_always_serves() -> None:
    sizes = alternatives([-1, 0], [60 * MIB, 0])
    requests = make_requests([0, 1], [NEVER, 2], [80 * MIB, 1], alternatives=sizes)
    result = replay(requests, capacity_bytes=100 * MIB)
    assert result.oom is None
    assert (result.placement.address[1], result.placement.size_bytes[1]) == (-1, 0)
    assert result.timeline.requested_bytes.tolist() == [80 * MIB] * 3


def test_out_of_memory_when_the_last_alternative_fails() -> None:
    sizes = alternatives([-1, 0], [60 * MIB, 50 * MIB])
    requests = make_requests([0, 1], [NEVER, 2], [80 * MIB, 1], alternatives=sizes)
    failed = replay(requests, capacity_bytes=100 * MIB).oom
    assert failed is not None
    assert (failed.request, failed.requested_bytes) == (1, 50 * MIB)
    assert replay_through("device", requests, capacity_bytes=100 * MIB).out_of_memory == 1


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Alternatives(np.array([1]), np.array([0, 1]), np.array([MIB])), "block 0 has the unknown list 1"),
        (Alternatives(np.array([0]), np.array([0, 2]), np.array([MIB])), "do not divide the 1 sizes"),
        (Alternatives(np.array([-1]), np.array([0, 0, 1]), np.array([MIB])), "do not divide the 1 sizes"),
        (Alternatives(np.array([0]), np.array([0, 2]), np.array([MIB, -1])), "-1 bytes"),
    ],
)
def test_alternatives_that_cannot_be_are_refused(broken: Alternatives, message: str) -> None:
    requests = replace(make_requests([0], [1], [MIB]), alternatives=broken)
    with pytest.raises(ConfigError, match=message):
        replay(requests)
