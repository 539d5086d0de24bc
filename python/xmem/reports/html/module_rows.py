"""The tree of modules as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xmem.attribution import Category
from xmem.breakdown.execution import Delta, Execution
from xmem.breakdown.modules import ModuleNode, ModuleTree, module_tree

if TYPE_CHECKING:
    from xmem.pipeline import Analysis

_MOST_ROWS = 1000
_COLUMNS = {
    "parameters": (Category.PARAMETER, Category.BUFFER),
    "gradients": (Category.GRADIENT,),
    "optimizer": (Category.OPTIMIZER_STATE,),
    "activations": (Category.ACTIVATION,),
    "other": (Category.INPUT, Category.WORKSPACE, Category.TEMPORARY, Category.UNKNOWN),
}
COLUMNS = ("at the peak", *_COLUMNS, "from forward", "from backward")
"""Of the bytes at the peak: all, by category, and by the pass that allocated them."""


class ModuleRow(NamedTuple):
    """A module.

    Attributes:
        path: Such as ``GPT.blocks.3``; empty for all modules together.
        level: From 1.
        values: Bytes, in the order of ``COLUMNS``.
        forward: What its forward changed in the iteration of the peak, None where that is not known.
        backward: The same of its backward.
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
        left_out: How many of the smallest modules have no row.
    """

    columns: tuple[str, ...]
    rows: list[ModuleRow]
    left_out: int


def module_rows_of(analysis: Analysis, execution: Execution | None) -> ModuleRows:
    """The largest modules, with those above them."""
    tree = module_tree(analysis, execution)
    # In order of size a parent, which holds no less and comes first, stands before its children.
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
