"""Allocations and frees that are in the allocator's history but that the profiler missed, from threads that
it did not follow. They go into the trace as further ``[memory]`` events, so that it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import NamedTuple

from ..watching.spans import Span
from .allocator_history import ALLOCATION, Requests
from .trace_writer import CUDA, MemoryChange, SeenMemory

_UNKNOWN_THREAD = 0


class _Request(NamedTuple):
    address: int
    size_bytes: int  # below 0 for a free
    time_ns: int  # by the allocator's clock, close to that of the trace


def unseen_memory(
    requests: Requests, seen: Sequence[SeenMemory], spans: Iterable[Span], base_ns: int
) -> list[MemoryChange]:
    """Return what the profiler did not see of one device.

    The events of an address alternate between allocations and frees in both lists, so they are matched
    address by address; where some are missing, by sign and nearest time.

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
    lines = [span for span in spans if span[0] == "xmem_line" and span[2] not in profiled]
    changes = []
    for row, time_ns in enumerate(_fill(all_of, time_of)):
        if time_of[row] is None:
            request = all_of[row]
            thread = _thread_at(lines, time_ns + base_ns)
            changes.append(
                MemoryChange(
                    time_ns, CUDA, requests.device, request.address, request.size_bytes, thread=thread
                )
            )
    return changes


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
    begin = 0
    for left, event in zip(range(len(events) - 1, -1, -1), events, strict=True):
        candidates = [
            at
            for at in range(begin, len(rows) - left)
            if (all_of[rows[at]].size_bytes > 0) == (event.size_bytes > 0)
        ]
        if not candidates:
            continue
        best = min(candidates, key=lambda at: abs(all_of[rows[at]].time_ns + lag - event.time_ns))
        time_of[rows[best]] = event.time_ns
        begin = best + 1


def _fill(all_of: Sequence[_Request], time_of: Sequence[int | None]) -> list[int]:
    """Return a time for each request; unknown times are set so as to keep the order."""
    times = [0] * len(all_of)
    latest = None  # what the next known time allows
    for row in range(len(all_of) - 1, -1, -1):
        known = time_of[row]
        if known is not None:
            times[row], latest = known, known
        else:
            own = all_of[row].time_ns
            times[row] = own if latest is None else min(own, latest - 1)
            latest = times[row]
    earliest = None
    for row, known in enumerate(time_of):
        if known is None and earliest is not None:
            times[row] = max(times[row], earliest + 1)
        earliest = times[row]
    return times


def _thread_at(lines: Sequence[Span], time_ns: int) -> int:
    """Return the thread whose call was under way, if there is only one."""
    threads = {thread for _, _, thread, begin, end in lines if begin <= time_ns < end}
    return threads.pop() if len(threads) == 1 else _UNKNOWN_THREAD
