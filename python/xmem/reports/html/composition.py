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
    changes = (requests.kind == RequestKind.ALLOC) | (requests.kind == RequestKind.FREE)
    changes[shown[-1] + 1 :] = False
    request = np.flatnonzero(changes)
    block = requests.block[request]
    sign = np.where(requests.kind[request] == RequestKind.ALLOC, 1, -1)
    change = (sign * np.maximum(replay.placement.size_bytes[block], 0)).astype(
        np.float64
    )  # exact below 2**53
    instant = np.searchsorted(shown, request)

    largest = _largest_modules(replay, holders)
    row_of_module = np.full(len(holders.modules) + 1, len(largest), np.int64)
    row_of_module[largest] = np.arange(len(largest))
    row_of_module[-1] = len(largest) + 1  # what module -1 finds
    return Composition(
        by_category=_accumulated(holders.category[block], instant, change, (len(Category), len(shown))),
        by_module=_accumulated(
            row_of_module[holders.module[block]], instant, change, (len(largest) + 2, len(shown))
        ),
        modules=largest,
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


def _accumulated(
    row: NDArray[np.integer], instant: NDArray[np.intp], change: NDArray[np.float64], shape: tuple[int, int]
) -> NDArray[np.int64]:
    cell = row.astype(np.int64) * shape[1] + instant
    by_instant = np.bincount(cell, change, shape[0] * shape[1]).reshape(shape)
    return np.cumsum(by_instant, axis=1).astype(np.int64)
