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
_CLOSE_NS = 10_000_000


def _can_be(row, size):
    return (row[0] > 0) == (size > 0) and abs(row[0]) <= abs(size)


def _all_find_one(rows, events):
    """Whether there is a request for each event, in order."""
    rest = iter(rows)
    return all(any(_can_be(row, size) for row in rest) for size, _ in events)


def _matched_slowly(rows, events):
    """Return the position of the request that each event of an address is of."""
    if len(rows) == len(events):
        return list(range(len(rows)))
    found, begin = [], 0
    for number, (size, time) in enumerate(events):
        candidates = [
            at
            for at in range(begin, len(rows))
            if _can_be(rows[at], size) and _all_find_one(rows[at + 1 :], events[number + 1 :])
        ]
        close = [at for at in candidates if abs(rows[at][1] - time) <= _CLOSE_NS]
        found.append(close[0] if close else min(candidates, key=lambda at: abs(rows[at][1] - time)))
        begin = found[-1] + 1
    return found


def _requests(times, sizes, addresses):
    """Requests in pairs of an allocation and a free, one address after the other by turns."""
    count = len(times) // 2
    return Requests(
        device=0,
        address=[addresses[number % len(addresses)] for number in range(count)],
        size_bytes=sizes[:count],
        stream=[0] * count,
        mempool=[0] * count,
        order=[x for number in range(count) for x in (ALLOCATION, number)],
        time_us=times,
    )


@st.composite
def runs(draw):
    """Draw requests, in pairs of an allocation and a free, and which of them were seen, and when."""
    count = draw(st.integers(1, 30))
    scale = draw(st.sampled_from([1, 10_000]))
    times = draw(st.lists(st.integers(0, 40), min_size=2 * count, max_size=2 * count).map(sorted))
    sizes = draw(st.lists(st.sampled_from([4, 8]), min_size=count, max_size=count))
    several = st.lists(st.booleans(), min_size=2 * count, max_size=2 * count)
    the_first = st.integers(0, 2 * count).map(lambda seen: [place < seen for place in range(2 * count)])
    seen = draw(several | the_first)
    jitter = draw(st.lists(st.integers(-3, 3), min_size=2 * count, max_size=2 * count))
    return [time * scale for time in times], sizes, seen, jitter


def _rows(times, sizes):
    return [
        (sizes[place // 2] * (1 if place % 2 == 0 else -1), time * 1000 - _BASE_NS)
        for place, time in enumerate(times)
    ]


@given(runs())
def test_requests_are_matched_as_a_search_through_all_of_them_would(run):
    times, sizes, seen, jitter = run
    rows = _rows(times, sizes)
    at = [rows[place][1] + jitter[place] * 500 for place in range(len(rows)) if seen[place]]
    shown = [rows[place][0] for place in range(len(rows)) if seen[place]]
    events = [SeenMemory(time, 0, 512, size, 7) for time, size in zip(sorted(at), shown, strict=True)]
    missed = unseen_memory(_requests(times, sizes, [512]), events, [], _BASE_NS)
    matched = _matched_slowly(rows, [(event.size_bytes, event.time_ns) for event in events]) if events else []
    if len(rows) == len(events):
        assert not missed
        return
    assert [change.size_bytes for change in missed] == [
        size for place, (size, _) in enumerate(rows) if place not in matched
    ]
    assert all(change.thread == 0 for change in missed)


@given(runs(), st.integers(1, 3))
def test_each_address_is_allocated_and_freed_by_turns(run, count):
    times, sizes, seen, jitter = run
    rows, addresses = _rows(times, sizes), [512 * (number + 1) for number in range(count)]
    events = [
        SeenMemory(rows[place][1] + 2000 * place + jitter[place] * 300, 0, address, rows[place][0], 7)
        for place in range(len(rows))
        if seen[place]
        for address in [addresses[place // 2 % count]]
    ]
    events.sort(key=lambda event: event.time_ns)
    missed = unseen_memory(_requests(times, sizes, addresses), events, [], _BASE_NS)
    assert len(missed) + len(events) == len(rows)
    for address in addresses:
        found = sorted(
            (event.time_ns, event.size_bytes) for event in [*events, *missed] if event.address == address
        )
        assert len(found) == 2 * len(range(addresses.index(address), len(sizes), count))
        assert all((size > 0) == (place % 2 == 0) for place, (_, size) in enumerate(found))


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
