"""The memory curve at as many instants as a screen can show, exact at its peaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xmem.simulation.replay import RequestKind, Requests
from xmem.trace.attribution import Phase

if TYPE_CHECKING:
    from xmem.run.workload import Workload
    from xmem.simulation.replay import Replay

_POINTS = {"allocated": 800, "active": 200, "reserved": 200}
_SHORTEST_PART = 1 / 2000
"""Share of the run: a shorter phase is not shaded."""
_MOST_SPANS = 600


class Span(NamedTuple):
    """A stretch of requests, including its last, that is shaded and named."""

    label: str
    first: int
    last: int


def shown_requests(replay: Replay) -> NDArray[np.intp]:
    """Return the requests to draw, ascending: both ends, the peaks, and those that keep the shape."""
    timeline = replay.timeline
    count = len(timeline.allocated_bytes)
    gauges = {"allocated": timeline.allocated_bytes, "reserved": timeline.reserved_bytes}
    if not np.array_equal(timeline.active_bytes, timeline.allocated_bytes):
        gauges["active"] = timeline.active_bytes
    chosen = [np.array([0, count - 1], np.intp)]
    for name, gauge in gauges.items():
        steps = np.flatnonzero(np.diff(gauge)) + 1
        chosen.append(steps if len(steps) <= _POINTS[name] else shape_of(gauge, _POINTS[name]))
    peaks = (replay.peak_allocated, replay.peak_active, replay.peak_reserved, replay.peak_requested)
    chosen.append(np.array([peak.request for peak in peaks if peak.request >= 0], np.intp))
    return np.unique(np.concatenate(chosen))


def shape_of(gauge: NDArray[np.int64], points: int) -> NDArray[np.intp]:
    """Return the given number of rows of a longer column, ascending, that keep the shape of its curve."""
    from tsdownsample import MinMaxLTTBDownsampler

    found: NDArray[np.intp] = (
        MinMaxLTTBDownsampler().downsample(gauge.astype(np.float64), n_out=points).astype(np.intp)
    )
    return found


def iterations_of(requests: Requests, workload: Workload) -> list[Span]:
    """Return the stretches in which the blocks of each iteration are made."""
    made = np.flatnonzero(requests.kind == RequestKind.ALLOC)
    return _runs(made, workload.iteration[requests.block[made]], 0, str)


def phases_of(requests: Requests, workload: Workload) -> list[Span]:
    """Return the stretches of each phase of the training step; requests outside of all are left out."""
    made = np.flatnonzero(requests.kind == RequestKind.ALLOC)
    phase = workload.phase[requests.block[made]].astype(np.int64)
    inside = phase != Phase.OTHER
    made, phase = made[inside], phase[inside]
    iteration = workload.iteration[requests.block[made]].astype(np.int64)
    labels = len(Phase)
    key = np.where(iteration < 0, -1, iteration * labels + phase)
    return _runs(made, key, int(len(requests) * _SHORTEST_PART), lambda found: Phase(found % labels).label)


def _runs(
    made: NDArray[np.intp], key: NDArray[np.integer], shortest: int, name: Callable[[int], str]
) -> list[Span]:
    """Return runs of equal keys among the requests, without negative keys and runs that are too short."""
    if len(made) == 0:
        return []
    begin = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    end = np.concatenate([begin[1:], [len(key)]]) - 1
    length = made[end] - made[begin] + 1
    kept = (key[begin] >= 0) & (length >= shortest)
    begin, end, length = begin[kept], end[kept], length[kept]
    if len(begin) > _MOST_SPANS:
        largest = np.sort(np.argsort(-length, kind="stable")[:_MOST_SPANS])
        begin, end = begin[largest], end[largest]
    return [
        Span(name(int(found)), int(first), int(last))
        for found, first, last in zip(key[begin], made[begin], made[end], strict=True)
    ]
