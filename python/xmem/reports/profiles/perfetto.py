"""The run over time for https://ui.perfetto.dev and chrome://tracing, in the Trace Event Format (JSON).

Counters of the allocator and of each category, slices of iterations, phases and modules, and the largest
blocks as slices from birth to death. Times are microseconds since the first request.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xmem.breakdown.composition import categories_at
from xmem.simulation.replay import RequestKind
from xmem.simulation.stretches import highest_of_stretches
from xmem.text.units import format_bytes
from xmem.trace.attribution import CATEGORY_LABELS, Category, Phase
from xmem.trace.trace import SPAN_KINDS

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis
    from xmem.estimation.holders import Holders

_PROCESS = 1
_ITERATIONS, _PHASES, _FIRST_MODULES = (
    1,
    2,
    10,
)  # threads of the process, in the order in which they are shown
_MOST_POINTS = 50_000
_MOST_BLOCKS = 500
_EVENTS_A_WRITE = 1000
_MODULE_KINDS = tuple(SPAN_KINDS.index(kind) for kind in ("module", "module_frame"))

_Event = dict[str, Any]


def write_perfetto(analysis: Analysis, file: IO[bytes]) -> int:
    """Write the run.

    For more than 50,000 requests, counters show only the highest of each stretch; peaks are exact.

    Args:
        analysis: The estimate and the data behind it.
        file: File to write to, in UTF-8.

    Returns:
        The number of events.
    """
    holders = analysis.holders
    requests = analysis.stages.requests
    clock = _Clock(int(requests.time_ns[0]), int(requests.time_ns[-1]))
    events = itertools.chain(
        _names(analysis),
        _counters(analysis, holders, clock),
        _steps(analysis, holders, clock),
        _modules(analysis, clock),
        _largest_blocks(analysis, holders, clock),
    )
    written = 0
    before = b'{"displayTimeUnit":"ms","traceEvents":[\n'
    while some := list(itertools.islice(events, _EVENTS_A_WRITE)):
        texts = (json.dumps(event, separators=(",", ":")) for event in some)
        file.write(before + ",\n".join(texts).encode())
        before = b",\n"
        written += len(some)
    file.write(b"\n]}\n")
    return written


class _Clock:
    """Times of the requests in microseconds, to the nanosecond."""

    def __init__(self, begin_ns: int, end_ns: int) -> None:
        self._begin_ns = begin_ns
        self._end_ns = end_ns

    def us(self, time_ns: int) -> float:
        """Return a time in microseconds; a time that never comes becomes the end of the requests."""
        return (min(time_ns, self._end_ns) - self._begin_ns) / 1000


def _names(analysis: Analysis) -> Iterator[_Event]:
    verdict = analysis.estimate.verdict
    process = "GPU memory" if verdict is None else f"GPU memory, {verdict.gpu}"
    yield _metadata("process_name", 0, process)
    yield _metadata("thread_name", _ITERATIONS, "iterations")
    yield _metadata("thread_name", _PHASES, "phases")


def _metadata(kind: str, thread: int, name: str) -> _Event:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": kind, "args": {"name": name}}


def _counters(analysis: Analysis, holders: Holders, clock: _Clock) -> Iterator[_Event]:
    requests, gauges = analysis.stages.requests, analysis.replay.timeline
    shown = _shown_requests(gauges.allocated_bytes, gauges.reserved_bytes)
    columns = {
        "allocated": gauges.allocated_bytes[shown].tolist(),
        "active": gauges.active_bytes[shown].tolist(),
        "reserved": gauges.reserved_bytes[shown].tolist(),
    }
    by_category = categories_at(shown, requests, analysis.replay, holders)
    held = {label: row.tolist() for label, row in zip(CATEGORY_LABELS, by_category, strict=True) if row.any()}
    times_us = [clock.us(time_ns) for time_ns in requests.time_ns[shown].tolist()]
    for name, values in columns.items():
        for ts, value in zip(times_us, values, strict=True):
            yield {"ph": "C", "pid": _PROCESS, "ts": ts, "name": name, "args": {"bytes": value}}
    for ts, *row in zip(times_us, *held.values(), strict=True):
        yield {
            "ph": "C",
            "pid": _PROCESS,
            "ts": ts,
            "name": "by category",
            "args": dict(zip(held, row, strict=True)),
        }


def _shown_requests(*gauges: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return all requests of a short run, else those where a gauge peaks in its stretch, and the last."""
    count = len(gauges[0])
    if count <= _MOST_POINTS:
        return np.arange(count)
    highest = [highest_of_stretches(gauge, (_MOST_POINTS - 1) // len(gauges)) for gauge in gauges]
    return np.unique(np.concatenate([*highest, [count - 1]]))


def _steps(analysis: Analysis, holders: Holders, clock: _Clock) -> Iterator[_Event]:
    """Yield iterations and phases, each from its first allocation to that of the next."""
    stages = analysis.stages
    allocs = np.flatnonzero(stages.requests.kind == RequestKind.ALLOC)
    block = stages.requests.block[allocs]
    iteration, phase = stages.workload.iteration[block].astype(np.int64), holders.phase[block]
    for thread, key in ((_ITERATIONS, iteration), (_PHASES, iteration * len(Phase) + phase)):
        begins = np.flatnonzero(np.diff(key, prepend=key[:1] - 1))
        times_us = [clock.us(time_ns) for time_ns in stages.requests.time_ns[allocs[begins]].tolist()]
        times_us.append(clock.us(int(stages.requests.time_ns[-1])))
        for row, ts, end_us in zip(begins.tolist(), times_us, times_us[1:], strict=False):
            step = int(iteration[row])
            outside = "outside of iterations"
            name = f"iteration {step}" if step >= 0 else outside
            if thread == _PHASES:
                name = Phase(int(phase[row])).label
            yield _slice(thread, name, ts, end_us, {"iteration": step} if step >= 0 else {})


def _modules(analysis: Analysis, clock: _Clock) -> Iterator[_Event]:
    """Yield calls of modules on a track per thread; none for a changed script, which has another clock."""
    if analysis.stages.what_if:
        return
    events, names = analysis.stages.trace.events, analysis.stages.trace.names
    begin_ns, end_ns = (int(analysis.stages.requests.time_ns[row]) for row in (0, -1))
    for kind in _MODULE_KINDS:
        rows = np.flatnonzero(
            (events.kind == kind) & (events.end_ns > begin_ns) & (events.begin_ns <= end_ns)
        )
        if len(rows):
            break
    for index, thread in enumerate(np.unique(events.thread[rows]).tolist()):
        of_thread = rows[events.thread[rows] == thread]
        shown_as = _FIRST_MODULES + index
        yield _metadata("thread_name", shown_as, f"modules, thread {thread}")
        columns = (
            events.name[of_thread],
            np.maximum(events.begin_ns[of_thread], begin_ns),
            events.end_ns[of_thread],
        )
        for name, begin, end in zip(*(column.tolist() for column in columns), strict=True):
            label = names[name].removeprefix("nn.Module: ")
            yield _slice(shown_as, label, clock.us(begin), clock.us(end), {})


def _slice(thread: int, name: str, begin_us: float, end_us: float, args: dict[str, Any]) -> _Event:
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": thread,
        "ts": begin_us,
        "dur": round(end_us - begin_us, 3),
        "name": name,
        "args": args,
    }


def _largest_blocks(analysis: Analysis, holders: Holders, clock: _Clock) -> Iterator[_Event]:
    """Yield the largest blocks as asynchronous slices, one track per category."""
    workload, placement = analysis.stages.workload, analysis.replay.placement
    placed = np.flatnonzero(placement.address >= 0)
    largest = placed[np.argsort(-placement.size_bytes[placed], kind="stable")[:_MOST_BLOCKS]]
    for row in np.sort(largest).tolist():
        category = Category(int(holders.category[row])).label
        size = format_bytes(int(placement.size_bytes[row]))
        module, operator = holders.module_name(row), holders.operator_name(row)
        inner = f"{size} {module or operator or ''}".rstrip()
        about = {
            "bytes": int(placement.size_bytes[row]),
            "requested_bytes": int(workload.size_bytes[row]),
            "address": hex(int(placement.address[row])),
            "phase": Phase(int(holders.phase[row])).label,
            "iteration": int(workload.iteration[row]),
            "module": module,
            "operator": operator,
            "source_line": holders.line_name(row),
        }
        begin_us, end_us = clock.us(int(workload.alloc_ns[row])), clock.us(int(workload.free_ns[row]))
        of_block = {"pid": _PROCESS, "cat": "largest blocks", "id": row}
        yield {**of_block, "ph": "b", "ts": begin_us, "name": category}
        yield {**of_block, "ph": "b", "ts": begin_us, "name": inner, "args": about}
        yield {**of_block, "ph": "e", "ts": end_us, "name": inner}
        yield {**of_block, "ph": "e", "ts": end_us, "name": category}
