"""Composition of all memory at given instants: by category and by module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from xmem.records import dataclass
from xmem.simulation.replay import RequestKind
from xmem.trace.attribution import Category

if TYPE_CHECKING:
    from xmem.estimation.holders import Holders
    from xmem.simulation.replay import Replay, Requests


@dataclass(frozen=True)
class Composition:
    """Bytes of the blocks alive after each request; the rows of either table sum to what is allocated.

    Attributes:
        by_category: int64, a row per `Category`, a column per instant.
        by_module: int64, a row per module; the last but one is for all other modules, the last for memory
            outside of modules.
        modules: Index of the module of each row of ``by_module`` except the last two.
    """

    by_category: NDArray[np.int64]
    by_module: NDArray[np.int64]
    modules: NDArray[np.intp]


def composition_at(
    instants: NDArray[np.intp], requests: Requests, replay: Replay, holders: Holders, *, most_modules: int
) -> Composition:
    """Compose the memory that is alive at some instants.

    Args:
        instants: Requests, ascending; the instant is right after each.
        requests: The sequence that was replayed.
        replay: Replay of the requests.
        holders: Holders of their blocks.
        most_modules: Number of the largest modules that have a row of their own.
    """
    changes = _changes_up_to(instants, requests, replay)
    largest = _largest_modules(replay, holders, most_modules)
    row_of_module = np.full(len(holders.modules) + 1, len(largest), np.int64)
    row_of_module[largest] = np.arange(len(largest))
    row_of_module[-1] = len(largest) + 1  # the row that module -1 indexes
    return Composition(
        by_category=changes.summed(holders.category, len(Category)),
        by_module=changes.summed(row_of_module[holders.module], len(largest) + 2),
        modules=largest,
    )


def categories_at(
    instants: NDArray[np.intp], requests: Requests, replay: Replay, holders: Holders
) -> NDArray[np.int64]:
    """Return the bytes alive after ascending requests: int64, a row per `Category`, a column per instant."""
    return _changes_up_to(instants, requests, replay).summed(holders.category, len(Category))


@dataclass(frozen=True)
class _Changes:
    """Allocations and frees, each with the first instant after it."""

    block: NDArray[np.int32]
    bytes: NDArray[np.float64]  # exact below 2**53
    instant: NDArray[np.intp]
    instants: int

    def summed(self, row_of_block: NDArray[np.integer], rows: int) -> NDArray[np.int64]:
        """Return the bytes alive at each instant in each row of a table."""
        cell = row_of_block[self.block].astype(np.int64) * self.instants + self.instant
        changed = np.bincount(cell, self.bytes, rows * self.instants).reshape(rows, self.instants)
        return np.cumsum(changed, axis=1).astype(np.int64)


def _changes_up_to(instants: NDArray[np.intp], requests: Requests, replay: Replay) -> _Changes:
    kind = requests.kind[: instants[-1] + 1]
    request = np.flatnonzero((kind == RequestKind.ALLOC) | (kind == RequestKind.FREE))
    block = requests.block[request]
    sign = np.where(kind[request] == RequestKind.ALLOC, 1, -1)
    size_bytes = np.maximum(replay.placement.size_bytes[block], 0)
    return _Changes(
        block, (sign * size_bytes).astype(np.float64), np.searchsorted(instants, request), len(instants)
    )


def _largest_modules(replay: Replay, holders: Holders, count: int) -> NDArray[np.intp]:
    """Return the modules that hold most at the peak, then those that allocate most."""
    size = np.maximum(replay.placement.size_bytes, 0)
    inside = holders.module >= 0
    modules = len(holders.modules)
    total = np.bincount(holders.module[inside], size[inside], modules)
    alive = holders.alive_at(replay.peak_allocated.request)
    alive = alive[inside[alive]]
    held = np.bincount(holders.module[alive], size[alive], modules)
    return np.lexsort((-total, -held))[:count]
