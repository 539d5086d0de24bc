"""The tree of modules as rows of a table, each with what the module and its children hold at the peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from xmem.attribution import Category, Phase

if TYPE_CHECKING:
    from xmem.holders import Holders
    from xmem.pipeline import Analysis

_MOST_ROWS = 1500
_COLUMNS = {
    "parameters": (Category.PARAMETER, Category.BUFFER),
    "gradients": (Category.GRADIENT,),
    "optimizer": (Category.OPTIMIZER_STATE,),
    "activations": (Category.ACTIVATION,),
    "other": (Category.INPUT, Category.WORKSPACE, Category.TEMPORARY, Category.UNKNOWN),
}


@dataclass(frozen=True)
class ModuleRow:
    """A module; ``values`` are bytes, in the order of the columns."""

    name: str
    path: str
    level: int
    has_children: bool
    values: tuple[int, ...]


@dataclass(frozen=True)
class ModuleRows:
    """Rows in the order of the tree, parents before their children."""

    columns: tuple[str, ...]
    rows: list[ModuleRow]
    left_out: int


def module_rows_of(analysis: Analysis, holders: Holders) -> ModuleRows:
    """Sum what lives at the peak by module and the modules above it."""
    alive = holders.alive_at(analysis.replay.peak_allocated.request)
    alive = alive[holders.module[alive] >= 0]
    module, size = holders.module[alive], analysis.replay.placement.size_bytes[alive].astype(np.float64)
    count = len(holders.modules)

    def summed(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(module[chosen], size[chosen], count).astype(np.int64)

    category, phase = holders.category[alive], holders.phase[alive]
    columns = [
        np.bincount(module, size, count).astype(np.int64),
        *(summed(np.isin(category, categories)) for categories in _COLUMNS.values()),
        summed(phase == Phase.FORWARD),
        summed(phase == Phase.BACKWARD),
    ]
    totals: dict[str, NDArray[np.int64]] = {}
    own = np.stack(columns, axis=1)
    for row in np.flatnonzero(own[:, 0]).tolist():
        path = holders.modules[row]
        while path:
            totals[path] = totals[path] + own[row] if path in totals else own[row]
            path = path.rpartition(".")[0]
    return _listed(totals, ("total", *_COLUMNS, "from forward", "from backward"))


def _listed(totals: dict[str, NDArray[np.int64]], columns: tuple[str, ...]) -> ModuleRows:
    """The largest modules as rows, siblings by bytes."""
    kept = sorted(totals, key=lambda path: (-totals[path][0], path))[:_MOST_ROWS]  # a parent holds no less
    children: dict[str, list[str]] = {}
    for path in kept:
        children.setdefault(path.rpartition(".")[0], []).append(path)
    rows: list[ModuleRow] = []
    waiting = [(path, 1) for path in reversed(children.get("", []))]
    while waiting:
        path, level = waiting.pop()
        below = children.get(path, [])
        rows.append(
            ModuleRow(path.rpartition(".")[2], path, level, bool(below), tuple(totals[path].tolist()))
        )
        waiting += [(child, level + 1) for child in reversed(below)]
    return ModuleRows(columns, rows, len(totals) - len(rows))
