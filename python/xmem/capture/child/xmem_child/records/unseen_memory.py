"""Allocations and frees that are in the allocator's history but that the profiler missed, from threads that
it did not follow. They go into the trace as further ``[memory]`` events, so that it is complete.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from statistics import median_low
from typing import NamedTuple

from ..watching.spans import Span
from .allocator_history import ALLOCATION, Requests
from .trace_writer import CUDA, MemoryChange, SeenMemory

_UNKNOWN_THREAD = 0
_CLOSE_NS = 10_000_000  # a thread may be put aside between the allocator's note and the profiler's


class _Request(NamedTuple):
    address: int
    size_bytes: int  # below 0 for a free
    time_ns: int  # by the allocator's clock, close to that of the trace


def unseen_memory(
    requests: Requests, seen: Sequence[SeenMemory], spans: Iterable[Span], base_ns: int
) -> list[MemoryChange]:
    """Return what the profiler did not see of one device.

    The events of an address alternate between allocations and frees in both lists, so they are matched
    address by address; where some are missing, by sign, size and time.

    Args:
        requests: Requests of the device.
        seen: What the profiler saw of the device, by time.
        spans: Our own spans, on the process's clock, which may reveal the thread.
        base_ns: Start of the trace's clock on the process's clock.
    """
    all_of = _in_order(requests, base_ns)
    if len(all_of) <= len(seen):
        return []
    time_of = _match(all_of, seen)
    profiled = {event.thread for event in seen}
    threads = _Threads(span for span in spans if span[0] == "xmem_line" and span[2] not in profiled)
    times = _fill(all_of, time_of)
    missed = [row for row, time in enumerate(time_of) if time is None]
    thread_of = {row: threads.at(times[row] + base_ns) for row in sorted(missed, key=times.__getitem__)}
    return [
        MemoryChange(
            times[row],
            CUDA,
            requests.device,
            all_of[row].address,
            all_of[row].size_bytes,
            thread=thread_of[row],
        )
        for row in missed
    ]


def _in_order(requests: Requests, base_ns: int) -> list[_Request]:
    rows, allocations = [], 0
    for freed, time_us in zip(requests.order, requests.time_us, strict=True):
        allocation = allocations if freed == ALLOCATION else freed
        size = requests.size_bytes[allocation]
        allocations += freed == ALLOCATION
        rows.append(
            _Request(
                requests.address[allocation], size if freed == ALLOCATION else -size, time_us * 1000 - base_ns
            )
        )
    return rows


def _match(all_of: Sequence[_Request], seen: Sequence[SeenMemory]) -> list[int | None]:
    """Return the profiler's time of each request, None where it has no event for it."""
    rows_at: dict[int, list[int]] = {}
    for row, request in enumerate(all_of):
        rows_at.setdefault(request.address, []).append(row)
    events_at: dict[int, list[SeenMemory]] = {}
    for event in seen:
        events_at.setdefault(event.address, []).append(event)
    time_of: list[int | None] = [None] * len(all_of)
    incomplete = []
    late = []
    for address, events in events_at.items():
        rows = rows_at.get(address, [])
        if len(rows) != len(events):
            incomplete.append((rows, events))
            continue
        for row, event in zip(rows, events, strict=True):
            time_of[row] = event.time_ns
            late.append(event.time_ns - all_of[row].time_ns)
    lag = median_low(late) if late else 0
    for rows, events in incomplete:
        _match_address(all_of, rows, events, lag, time_of)
    return time_of


def _match_address(
    all_of: Sequence[_Request],
    rows: Sequence[int],
    events: Sequence[SeenMemory],
    lag: int,
    time_of: list[int | None],
) -> None:
    """Match the events of an address to requests in order.

    An event goes to the first request that it can be of, if that is close in time: what the profiler saw is
    mostly one run of requests, and both clocks are too coarse to tell those of one address apart. It goes to
    the nearest if none is close.
    """
    times = [all_of[row].time_ns + lag for row in rows]
    sizes = [all_of[row].size_bytes for row in rows]
    begin = 0
    for event, end in zip(events, _latest(sizes, events), strict=True):
        if end is None:
            continue  # the history does not have it

        def fits(at: int, event: SeenMemory = event) -> bool:
            return _can_be(sizes[at], event)

        first = bisect_left(times, event.time_ns - _CLOSE_NS, begin, end + 1)
        best = next((at for at in range(first, end + 1) if fits(at)), None)
        if best is None or times[best] > event.time_ns + _CLOSE_NS:
            best = _nearest(times, begin, end + 1, event.time_ns, fits)
        assert best is not None  # that at the end, if no other
        time_of[rows[best]] = event.time_ns
        begin = best + 1


def _latest(sizes: Sequence[int], events: Sequence[SeenMemory]) -> list[int | None]:
    """Return the last place that each event can have, so that all after it find one; None if it has none."""
    places: list[int | None] = []
    end = len(sizes)
    for event in reversed(events):
        place = next((at for at in range(end - 1, -1, -1) if _can_be(sizes[at], event)), None)
        places.append(place)
        end = end if place is None else place
    return places[::-1]


def _can_be(size_bytes: int, event: SeenMemory) -> bool:
    """Return whether an event is of a request of this size: it has the size of the block."""
    return (size_bytes > 0) == (event.size_bytes > 0) and abs(size_bytes) <= abs(event.size_bytes)


def _nearest(
    times: Sequence[int], begin: int, end: int, time: int, fits: Callable[[int], bool]
) -> int | None:
    """Return the place of the time, between two places of an ascending list, that is nearest to another, the
    first of several; None if nothing fits."""
    middle = bisect_left(times, time, begin, end)
    after = next((at for at in range(middle, end) if fits(at)), None)
    before = next((at for at in range(middle - 1, begin - 1, -1) if fits(at)), None)
    if before is None or (after is not None and times[after] - time < time - times[before]):
        return after
    same = range(bisect_left(times, times[before], begin, before), before)
    return next((at for at in same if fits(at)), before)


def _fill(all_of: Sequence[_Request], time_of: Sequence[int | None]) -> list[int]:
    """Return a time for each request. Unknown times are set so as to keep the order of each address, and that
    of all requests as far as the known times do."""
    times = [0] * len(all_of)
    before: list[int | None] = [None] * len(all_of)  # what the next request of the address allows
    next_at: dict[int, int] = {}
    latest = None  # what the next request allows
    for row in range(len(all_of) - 1, -1, -1):
        address, known = all_of[row].address, time_of[row]
        before[row] = next_at.get(address)
        if known is None:
            bounds = [bound - 1 for bound in (latest, before[row]) if bound is not None]
            times[row] = min([all_of[row].time_ns, *bounds])
        else:
            times[row] = known
        next_at[address] = latest = times[row]
    last_at: dict[int, int] = {}
    earliest = None
    for row, known in enumerate(time_of):
        address, bound = all_of[row].address, before[row]
        if known is None:
            if earliest is not None:
                times[row] = max(times[row], earliest + 1)
            if bound is not None:
                times[row] = min(times[row], bound - 1)
            if address in last_at:
                times[row] = max(times[row], last_at[address] + 1)
        last_at[address] = earliest = times[row]
    return times


class _Threads:
    """Tells whose call was under way.

    Args:
        lines: Calls of threads.
    """

    def __init__(self, lines: Iterable[Span]) -> None:
        self._coming = sorted((begin, end, thread) for _, _, thread, begin, end in lines)[::-1]
        self._under_way: list[tuple[int, int]] = []

    def at(self, time_ns: int) -> int:
        """Return the thread whose call was under way, if there is only one. Times never go back."""
        while self._coming and self._coming[-1][0] <= time_ns:
            _, end, thread = self._coming.pop()
            heapq.heappush(self._under_way, (end, thread))
        while self._under_way and self._under_way[0][0] <= time_ns:
            heapq.heappop(self._under_way)
        threads = {thread for _, thread in self._under_way}
        return threads.pop() if len(threads) == 1 else _UNKNOWN_THREAD
