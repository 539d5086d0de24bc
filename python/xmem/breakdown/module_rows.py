"""The tree of modules as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xmem.breakdown.execution import Delta, Execution
from xmem.breakdown.modules import ModuleNode, ModuleTree, module_tree
from xmem.trace.attribution import Category

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis

_MOST_ROWS = 1000
_COLUMNS = {
    "parameters": (Category.PARAMETER, Category.BUFFER),
    "gradients": (Category.GRADIENT,),
    "optimizer": (Category.OPTIMIZER_STATE,),
    "activations": (Category.ACTIVATION,),
    "other": (Category.INPUT, Category.WORKSPACE, Category.TEMPORARY, Category.UNKNOWN),
}
COLUMNS = ("at the peak", *_COLUMNS, "from forward", "from backward")
"""Columns of the bytes at the peak: all, by category, and by the pass that allocated them."""


class ModuleRow(NamedTuple):
    """A module.

    Attributes:
        path: Path such as ``GPT.blocks.3``; empty for all modules together.
        level: Depth in the tree, from 1.
        values: Bytes, in the order of ``COLUMNS``.
        forward: Change by its forward in the iteration of the peak, None where that is unknown.
        backward: The same for its backward.
    """

    name: str
    path: str
    level: int
    has_children: bool
    values: tuple[int, ...]
    forward: Delta | None
    backward: Delta | None


class ModuleRows(NamedTuple):
    """Rows in the order of the tree, parents before their children.

    Attributes:
        left_out: Number of the smallest modules that have no row.
    """

    columns: tuple[str, ...]
    rows: list[ModuleRow]
    left_out: int


def module_rows_of(analysis: Analysis, execution: Execution | None) -> ModuleRows:
    """Return the largest modules, with those above them."""
    tree = module_tree(analysis, execution)
    # Sorted by size, a parent precedes its children: it holds no less and comes first.
    kept = np.zeros(len(tree), np.bool_)
    kept[np.argsort(-tree.bytes, kind="stable")[:_MOST_ROWS]] = True
    return ModuleRows(COLUMNS, _rows(tree, kept), len(tree) - int(kept.sum()))


def _rows(tree: ModuleTree, kept: NDArray[np.bool_]) -> list[ModuleRow]:
    rows: list[ModuleRow] = []
    waiting = [(tree.root, 1)]
    while waiting:
        node, level = waiting.pop()
        children = tree.children_of(node.row)
        below = [ModuleNode(tree, row) for row in children[kept[children]].tolist()]
        rows.append(
            ModuleRow(
                name=node.name or "all of it",
                path=node.path,
                level=level,
                has_children=bool(below),
                values=_values(node),
                forward=node.forward,
                backward=node.backward,
            )
        )
        waiting += [(child, level + 1) for child in reversed(below)]
    return rows


def _values(node: ModuleNode) -> tuple[int, ...]:
    by_category = (
        sum(node.category.get(category.label, 0) for category in categories)
        for categories in _COLUMNS.values()
    )
    return (node.bytes, *by_category, node.forward_bytes, node.backward_bytes)
