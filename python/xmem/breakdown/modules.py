"""The tree of modules: memory that each holds at the peak, and that its forward and backward leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from xmem.breakdown.execution import Delta, Execution
from xmem.estimation.analysis import Analysis
from xmem.estimation.evidence import taken_bytes
from xmem.estimation.holders import OUTSIDE_OF_MODULES
from xmem.records import dataclass
from xmem.trace.attribution import CATEGORY_LABELS, Category, Phase

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class ModuleTree:
    """The modules of a run as columns; row 0 is the root of all, a parent precedes its children.

    Bytes are those of blocks, including rounding and slack, of a module and everything inside it.

    Attributes:
        path: Path such as ``GPT.blocks.3.mlp``; empty for the root.
        parent: intp, row of the enclosing module, -1 for the root.
        category_bytes: int64, shape (modules, categories): bytes at the peak.
        forward_bytes: int64, bytes at the peak that the forward pass has allocated.
        backward_bytes: int64, bytes at the peak that the backward pass has allocated.
        persistent_bytes: int64, bytes at the peak in blocks that outlive their iteration.
        tensor_bytes: int64, shape (modules, categories): bytes of named tensors (parameter, buffer, gradient,
            optimizer state), whether they are alive at the peak or not; 0 in a trace that names none.
        forward: int64, shape (modules, 2): change of allocated and reserved bytes by its forward in the
            iteration of the peak; None where that is unknown: a what-if changed the run, or the trace has no
            iterations.
        backward: The same for its backward.
    """

    path: list[str]
    parent: NDArray[np.intp]
    category_bytes: Int64
    forward_bytes: Int64
    backward_bytes: Int64
    persistent_bytes: Int64
    tensor_bytes: Int64
    forward: Int64 | None
    backward: Int64 | None

    def __len__(self) -> int:
        return len(self.path)

    @property
    def root(self) -> ModuleNode:
        """The root node, which contains all others."""
        return ModuleNode(self, 0)

    @cached_property
    def bytes(self) -> Int64:
        """All bytes of each module at the peak."""
        total: Int64 = self.category_bytes.sum(axis=1)
        return total

    def children_of(self, row: int) -> NDArray[np.intp]:
        """Return the rows of the modules right below a module, in order."""
        by_parent, begins = self._by_parent
        return by_parent[begins[row] : begins[row + 1]]

    @cached_property
    def _by_parent(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        order = np.argsort(self.parent, kind="stable")[1:]  # without the root
        return order, np.searchsorted(self.parent[order], np.arange(len(self) + 1))


@dataclass(frozen=True)
class ModuleNode:
    """One module of a tree: a view of its row, with the names of ``ModuleTree``."""

    tree: ModuleTree
    row: int

    @property
    def path(self) -> str:
        """Path such as ``GPT.blocks.3.mlp``; empty for the root."""
        return self.tree.path[self.row]

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def bytes(self) -> int:
        """All of its bytes at the peak."""
        return int(self.tree.bytes[self.row])

    @property
    def category(self) -> Mapping[str, int]:
        """Bytes at the peak by category, most first."""
        return _by_category(self.tree.category_bytes[self.row])

    @property
    def tensors(self) -> Mapping[str, int]:
        """Bytes of its named tensors by category, alive at the peak or not."""
        return _by_category(self.tree.tensor_bytes[self.row])

    @property
    def forward_bytes(self) -> int:
        """Bytes at the peak that the forward pass has allocated."""
        return int(self.tree.forward_bytes[self.row])

    @property
    def backward_bytes(self) -> int:
        """Bytes at the peak that the backward pass has allocated."""
        return int(self.tree.backward_bytes[self.row])

    @property
    def persistent_bytes(self) -> int:
        """Bytes at the peak in blocks that outlive their iteration."""
        return int(self.tree.persistent_bytes[self.row])

    @property
    def forward(self) -> Delta | None:
        """Change by its forward in the iteration of the peak, None where that is unknown."""
        return None if self.tree.forward is None else Delta(*self.tree.forward[self.row].tolist())

    @property
    def backward(self) -> Delta | None:
        """The same for its backward."""
        return None if self.tree.backward is None else Delta(*self.tree.backward[self.row].tolist())

    @property
    def children(self) -> Iterator[ModuleNode]:
        """The modules right below, in the order in which they first appear."""
        return (ModuleNode(self.tree, row) for row in self.tree.children_of(self.row).tolist())

    def walk(self) -> Iterator[ModuleNode]:
        """Yield the module and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def _by_category(row: Int64) -> dict[str, int]:
    order = np.argsort(-row, kind="stable")
    return {CATEGORY_LABELS[category]: int(row[category]) for category in order.tolist() if row[category]}


def module_tree(analysis: Analysis, execution: Execution | None) -> ModuleTree:
    """Return the modules of a run that hold or change memory, below a root for all bytes at the peak.

    Args:
        analysis: The run.
        execution: Execution of the run, from ``execution_of``.
    """
    paths = _Paths()
    own = _own_peak(paths, analysis)
    own["tensor_bytes"] = _own_tensors(paths, analysis)
    if execution is not None:
        own["forward"], own["backward"] = _own_changes(paths, execution)
    parent = np.array(paths.parent, np.intp)
    whole = {name: _with_children(column, parent) for name, column in own.items()}
    used = np.any([column.reshape(len(column), -1).any(axis=1) for column in whole.values()], axis=0)
    used[0] = True
    rows = np.flatnonzero(used)
    row_of = np.cumsum(used) - 1
    return ModuleTree(
        path=[paths.paths[row] for row in rows.tolist()],
        parent=np.where(parent[rows] >= 0, row_of[parent[rows]], -1),
        forward=whole.pop("forward")[rows] if execution is not None else None,
        backward=whole.pop("backward")[rows] if execution is not None else None,
        **{name: column[rows] for name, column in whole.items()},
    )


class _Paths:
    """Numbers the paths of modules, a parent before its children."""

    def __init__(self) -> None:
        self.paths = [""]
        self.parent = [-1]
        self._row_of = {"": 0}

    def rows_of(self, paths: list[str]) -> NDArray[np.intp]:
        """Return the row of each path, and last the row for everything outside of modules."""
        return np.array([self._row(path) for path in [*paths, OUTSIDE_OF_MODULES]], np.intp)

    def _row(self, path: str) -> int:
        row = self._row_of.get(path)
        if row is None:
            # The row outside of modules is a child of the root: its name holds no dot.
            parent = self._row(path.rpartition(".")[0])
            row = self._row_of[path] = len(self.paths)
            self.paths.append(path)
            self.parent.append(parent)
        return row


def _summed(rows: NDArray[np.intp], values: Int64, count: int) -> Int64:
    """Sum values, or rows of values, by row."""
    sums = np.zeros((count, *values.shape[1:]), np.int64)
    np.add.at(sums, rows, values)
    return sums


def _own_peak(paths: _Paths, analysis: Analysis) -> dict[str, Int64]:
    """Return the bytes at the peak of each module, without the modules inside it."""
    holders = analysis.holders
    alive = holders.alive_at(analysis.replay.peak_allocated.request)
    held = analysis.replay.placement.size_bytes[alive]
    module = paths.rows_of(holders.modules)[holders.module[alive]]
    count, phase = len(paths.paths), holders.phase[alive]
    cell = module * len(Category) + holders.category[alive]
    return {
        "category_bytes": _summed(cell, held, count * len(Category)).reshape(count, -1),
        "forward_bytes": _summed(module, np.where(phase == Phase.FORWARD, held, 0), count),
        "backward_bytes": _summed(module, np.where(phase == Phase.BACKWARD, held, 0), count),
        "persistent_bytes": _summed(module, np.where(holders.persistent[alive], held, 0), count),
    }


def _own_tensors(paths: _Paths, analysis: Analysis) -> Int64:
    """Count each named tensor once: a parameter is a new block for every model that it moves to, a gradient
    for every iteration.
    """
    workload, holders = analysis.stages.workload, analysis.holders
    names = analysis.stages.trace.notes.tensors.name
    named = np.flatnonzero((workload.tensor >= 0) & (holders.module >= 0))
    latest = {
        (category, names[tensor]): row
        for category, tensor, row in zip(
            workload.category[named].tolist(), workload.tensor[named].tolist(), named.tolist(), strict=True
        )
    }
    rows = np.array(list(latest.values()), np.intp)
    held = taken_bytes(workload, analysis.stages.requests, analysis.replay)[rows]
    module = paths.rows_of(holders.modules)[holders.module[rows]]
    count = len(paths.paths)
    cell = module * len(Category) + workload.category[rows]
    return _summed(cell, held, count * len(Category)).reshape(count, -1)


def _own_changes(paths: _Paths, execution: Execution) -> tuple[Int64, Int64]:
    """Return the changes by forward and backward of each module, without the modules inside it."""
    module = paths.rows_of(execution.modules)[execution.module]
    change = np.stack([execution.allocated_bytes, execution.reserved_bytes], axis=1)
    forward, backward = (execution.phase == phase for phase in (Phase.FORWARD, Phase.BACKWARD))
    count = len(paths.paths)
    return (
        _summed(module[forward], change[forward], count),
        _summed(module[backward], change[backward], count),
    )


def _with_children(own: Int64, parent: NDArray[np.intp]) -> Int64:
    """Add its children to each module, innermost level first; modules added later have no own values."""
    whole = np.zeros((len(parent), *own.shape[1:]), np.int64)
    whole[: len(own)] = own
    level = np.zeros(len(parent), np.intp)
    at = parent
    while (at >= 0).any():
        level += at >= 0
        at = np.where(at >= 0, parent[at], -1)
    by_level = np.argsort(-level, kind="stable")
    ends = np.searchsorted(-level[by_level], -np.arange(int(level.max(initial=0)), -1, -1), side="right")
    for begin, end in pairwise([0, *ends.tolist()]):
        rows = by_level[begin:end]
        rows = rows[parent[rows] >= 0]
        np.add.at(whole, parent[rows], whole[rows])
    return whole
