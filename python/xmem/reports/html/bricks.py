"""Blocks around the peak as bricks: the largest by bytes and time, stacked in the order of their allocation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from xmem.holders import Holders
    from xmem.orchestration.workload import Workload
    from xmem.simulation import Replay

MOST_BRICKS = 1500
_COLUMNS = 480
_REQUESTS_AROUND = 2000
"""Shown on either side of a peak that lies in no iteration."""


@dataclass(frozen=True)
class Bricks:
    """The window around the peak.

    Attributes:
        request: The instants of the columns, ascending; the peak is one of them.
        allocated_bytes: int64, at each column, of all blocks.
        blocks: Rows of the workload that are shown, in order of allocation.
    """

    request: NDArray[np.intp]
    allocated_bytes: NDArray[np.int64]
    blocks: NDArray[np.intp]


def bricks_around_peak(replay: Replay, workload: Workload, holders: Holders, peak_block: int) -> Bricks:
    """The largest blocks of the iteration in which the allocated memory peaks."""
    count, peak = len(replay.timeline.allocated_bytes), replay.peak_allocated.request
    first, last = _window(workload, holders, peak_block, peak, count)
    columns = np.unique(np.append(np.linspace(first, last, _COLUMNS).astype(np.intp), peak))
    begin = np.maximum(holders.alloc_request, first)
    end = np.minimum(holders.free_request, last + 1)
    overlap = end > begin
    area = np.where(overlap, np.maximum(replay.placement.size_bytes, 0), 0) * np.maximum(end - begin, 0).astype(
        np.float64
    )
    rows = np.flatnonzero(area > 0)
    if len(rows) > MOST_BRICKS:
        rows = rows[np.argpartition(-area[rows], MOST_BRICKS)[:MOST_BRICKS]]
    rows = rows[np.argsort(holders.alloc_request[rows], kind="stable")]
    return Bricks(columns, replay.timeline.allocated_bytes[columns], rows)


def _window(
    workload: Workload, holders: Holders, peak_block: int, peak: int, count: int
) -> tuple[int, int]:
    iteration = int(workload.iteration[peak_block])
    if iteration < 0:
        return max(peak - _REQUESTS_AROUND, 0), min(peak + _REQUESTS_AROUND, count - 1)
    made = holders.alloc_request[(workload.iteration == iteration) & (holders.alloc_request < count)]
    return int(made.min()), min(max(int(made.max()), peak) + 1, count - 1)
