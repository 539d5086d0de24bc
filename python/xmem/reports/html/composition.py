"""Who holds the memory at each drawn instant: by category and by module, all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from xmem.attribution import Category
from xmem.simulation import RequestKind

if TYPE_CHECKING:
    from xmem.holders import Holders
    from xmem.simulation import Replay, Requests

MOST_MODULES = 60


@dataclass(frozen=True)
class Composition:
    """Bytes of the blocks alive after each drawn request; the rows of either table sum to what is allocated.

    Attributes:
        by_category: int64, a row a `Category`, a column an instant.
        by_module: int64, a row a module, the last but one the other modules, the last outside of modules.
        modules: Index of the module of each row of ``by_module`` but the last two.
    """

    by_category: NDArray[np.int64]
    by_module: NDArray[np.int64]
    modules: NDArray[np.intp]


def composition_at(
    shown: NDArray[np.intp], requests: Requests, replay: Replay, holders: Holders
) -> Composition:
    """Compose what is alive after each of the shown requests, which are ascending."""
    changes = _changes_up_to(shown, requests, replay)
    largest = _largest_modules(replay, holders)
    row_of_module = np.full(len(holders.modules) + 1, len(largest), np.int64)
    row_of_module[largest] = np.arange(len(largest))
    row_of_module[-1] = len(largest) + 1  # what module -1 finds
    return Composition(
        by_category=changes.summed(holders.category, len(Category)),
        by_module=changes.summed(row_of_module[holders.module], len(largest) + 2),
        modules=largest,
    )


def categories_at(
    shown: NDArray[np.intp], requests: Requests, replay: Replay, holders: Holders
) -> NDArray[np.int64]:
    """Bytes alive after each of the shown requests: a row a `Category`, a column an instant."""
    return _changes_up_to(shown, requests, replay).summed(holders.category, len(Category))


@dataclass(frozen=True)
class _Changes:
    """Allocations and frees, with the first of the instants that sees each."""

    block: NDArray[np.int32]
    bytes: NDArray[np.float64]  # exact below 2**53
    instant: NDArray[np.intp]
    instants: int

    def summed(self, row_of_block: NDArray[np.integer], rows: int) -> NDArray[np.int64]:
        """Bytes alive at each instant in each row of a table."""
        cell = row_of_block[self.block].astype(np.int64) * self.instants + self.instant
        changed = np.bincount(cell, self.bytes, rows * self.instants).reshape(rows, self.instants)
        return np.cumsum(changed, axis=1).astype(np.int64)


def _changes_up_to(shown: NDArray[np.intp], requests: Requests, replay: Replay) -> _Changes:
    kind = requests.kind[: shown[-1] + 1]
    request = np.flatnonzero((kind == RequestKind.ALLOC) | (kind == RequestKind.FREE))
    block = requests.block[request]
    sign = np.where(kind[request] == RequestKind.ALLOC, 1, -1)
    size_bytes = np.maximum(replay.placement.size_bytes[block], 0)
    return _Changes(
        block, (sign * size_bytes).astype(np.float64), np.searchsorted(shown, request), len(shown)
    )


def _largest_modules(replay: Replay, holders: Holders) -> NDArray[np.intp]:
    """Those that hold most at the peak, then those that allocate most."""
    size = np.maximum(replay.placement.size_bytes, 0)
    inside = holders.module >= 0
    count = len(holders.modules)
    total = np.bincount(holders.module[inside], size[inside], count)
    alive = holders.alive_at(replay.peak_allocated.request)
    alive = alive[inside[alive]]
    held = np.bincount(holders.module[alive], size[alive], count)
    return np.lexsort((-total, -held))[: min(MOST_MODULES, count)]
