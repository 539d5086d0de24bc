"""Which of the allocator's requests the profiler missed: against a slow search of the same."""

import sys
from pathlib import Path
from statistics import median_low

from hypothesis import given
from hypothesis import strategies as st

import xmem.capture

sys.path.insert(0, str(Path(xmem.capture.__file__).parent / "child"))

from xmem_child.records.allocator_history import ALLOCATION, Requests
from xmem_child.records.trace_writer import SeenMemory
from xmem_child.records.unseen_memory import unseen_memory

_BASE_NS = 1_000_000


def _matched_slowly(rows, events):
    """Return the position of the request that each event of an address is of."""
    if len(rows) == len(events):
        return list(range(len(rows)))
    found, begin = [], 0
    for left, (size, time) in zip(range(len(events) - 1, -1, -1), events, strict=True):
        candidates = [at for at in range(begin, len(rows) - left) if (rows[at][0] > 0) == (size > 0)]
        if candidates:
            found.append(min(candidates, key=lambda at: abs(rows[at][1] - time)))
            begin = found[-1] + 1
    return found


@st.composite
def runs(draw):
    """Draw an address's requests, in pairs of an allocation and a free, and which of them were seen."""
    count = draw(st.integers(1, 30))
    times = draw(st.lists(st.integers(0, 40), min_size=2 * count, max_size=2 * count).map(sorted))
    seen = draw(st.lists(st.booleans(), min_size=2 * count, max_size=2 * count))
    jitter = draw(st.lists(st.integers(-3, 3), min_size=2 * count, max_size=2 * count))
    return times, seen, jitter


@given(runs())
def test_requests_are_matched_as_a_search_through_all_of_them_would(run):
    times, seen, jitter = run
    count = len(times) // 2
    requests = Requests(
        device=0,
        address=[512] * count,
        size_bytes=[4] * count,
        stream=[0] * count,
        mempool=[0] * count,
        order=[x for number in range(count) for x in (ALLOCATION, number)],
        time_us=times,
    )
    rows = [(4 if place % 2 == 0 else -4, time * 1000 - _BASE_NS) for place, time in enumerate(times)]
    events = sorted(
        (rows[place][1] + jitter[place] * 500, 0, 512, rows[place][0], 7)
        for place in range(len(rows))
        if seen[place]
    )
    events = [SeenMemory(*event) for event in events]
    missed = unseen_memory(requests, events, [], _BASE_NS)
    matched = _matched_slowly(rows, [(event.size_bytes, event.time_ns) for event in events]) if events else []
    if len(rows) == len(events):
        assert not missed
        return
    assert [change.size_bytes for change in missed] == [
        size for place, (size, _) in enumerate(rows) if place not in matched
    ]
    assert all(change.thread == 0 for change in missed)


def test_the_thread_is_that_of_the_only_call_under_way():
    requests = Requests(
        device=0,
        address=[512, 1024, 2048],
        size_bytes=[4, 4, 4],
        stream=[0] * 3,
        mempool=[0] * 3,
        order=[ALLOCATION] * 3,
        time_us=[2000, 3000, 4000],
    )
    lines = [
        ("xmem_line", "a:1", 8, 1_500_000, 3_500_000),
        ("xmem_line", "b:1", 9, 2_500_000, 3_200_000),
        ("xmem_module", "m", 9, 0, 9_000_000),
        ("xmem_line", "c:1", 9, 3_900_000, 4_100_000),
    ]
    missed = unseen_memory(requests, [], lines, _BASE_NS)
    assert [change.thread for change in missed] == [8, 0, 9]
    assert median_low([change.time_ns for change in missed]) == 3_000_000 - _BASE_NS
