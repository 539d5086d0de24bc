"""The tree of modules as rows of a table, each with what the module and its children hold at the peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xmem.attribution import Category, Phase

if TYPE_CHECKING:
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


def module_rows_of(analysis: Analysis) -> ModuleRows:
    raise NotImplementedError
