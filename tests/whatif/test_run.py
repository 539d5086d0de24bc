"""Room in the clock of a run."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whatif.nested_sample import nested
from xmem.estimation.observation import observe
from xmem.whatif.changed_run import ChangedRun

OBSERVED = observe(nested().bytes())
TIMES = st.integers(0, 700_000)
ROOMS = st.lists(st.tuples(TIMES, st.integers(1, 10_000)), max_size=5, unique_by=lambda room: room[0])


@given(ROOMS, ROOMS)
def test_all_room_at_once_is_as_one_after_the_other(
    before: list[tuple[int, int]], rooms: list[tuple[int, int]]
) -> None:
    start = ChangedRun(OBSERVED.workload, OBSERVED.recorded).with_rooms(before)
    at_once, one_by_one = start.with_rooms(rooms), start
    for at_ns, room_ns in sorted(rooms, reverse=True):
        one_by_one = one_by_one.with_room(at_ns, room_ns)
    assert np.array_equal(at_once.workload.alloc_ns, one_by_one.workload.alloc_ns)
    assert np.array_equal(at_once.workload.free_ns, one_by_one.workload.free_ns)
    # blocks of the trace and times of the trace move alike
    rows = OBSERVED.workload.block
    born = OBSERVED.recorded.blocks.alloc_ns[rows]
    assert np.array_equal(at_once.clock(born), at_once.workload.alloc_ns)
