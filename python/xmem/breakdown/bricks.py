"""Blocks around the peak as bricks: the largest by bytes and time, stacked in order of allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from xmem.breakdown.composition import categories_at
from xmem.records import dataclass

if TYPE_CHECKING:
    from xmem.estimation.holders import Holders
    from xmem.run.workload import Workload
    from xmem.simulation.replay import Replay, Requests

MOST_BRICKS = 1500
_COLUMNS = 480
_REQUESTS_AROUND = 2000
"""Requests to show on either side of a peak that lies in no iteration."""


@dataclass(frozen=True)
class Bricks:
    """The window around the peak.

    Attributes:
        request: The instants of the columns, ascending; the peak is one of them.
        by_category: int64 bytes of all blocks, a row per `Category`, a column per instant.
        blocks: Rows of the workload that are shown, in order of allocation.
        left_out: Number of smaller blocks of the window that are not.
    """

    request: NDArray[np.intp]
    by_category: NDArray[np.int64]
    blocks: NDArray[np.intp]
    left_out: int


def bricks_around_peak(requests: Requests, replay: Replay, workload: Workload, holders: Holders) -> Bricks:
    """Return the largest blocks of the iteration in which the allocated memory peaks."""
    first, last = _window(replay, workload, holders)
    peak = replay.peak_allocated.request
    columns = np.unique(np.append(np.linspace(first, last, _COLUMNS).astype(np.intp), peak))
    begin = np.maximum(holders.alloc_request, first)
    end = np.minimum(holders.free_request, last + 1)
    lived = np.maximum(end - begin, 0).astype(np.float64)
    area = lived * np.maximum(replay.placement.size_bytes, 0)
    rows = np.flatnonzero(area > 0)
    left_out = max(len(rows) - MOST_BRICKS, 0)
    if left_out:
        rows = rows[np.argpartition(-area[rows], MOST_BRICKS)[:MOST_BRICKS]]
    rows = rows[np.argsort(holders.alloc_request[rows], kind="stable")]
    return Bricks(columns, categories_at(columns, requests, replay, holders), rows, left_out)


def _window(replay: Replay, workload: Workload, holders: Holders) -> tuple[int, int]:
    """Return the first and last request that the bricks show."""
    peak, count = replay.peak_allocated.request, len(replay.timeline.allocated_bytes)
    raised = holders.alloc_request == peak
    iteration = int(workload.iteration[np.flatnonzero(raised)[0]]) if raised.any() else -1
    if iteration < 0:
        return max(peak - _REQUESTS_AROUND, 0), min(peak + _REQUESTS_AROUND, count - 1)
    made = holders.alloc_request[(workload.iteration == iteration) & (holders.alloc_request < count)]
    return int(made.min()), min(int(made.max()) + 1, count - 1)
