"""The tree of modules: what each holds at the peak, and what its forward and backward leave behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from xmem.attribution import Category, Phase
from xmem.breakdown.execution import Execution, execution_of
from xmem.evidence import taken_bytes
from xmem.holders import OUTSIDE_OF_MODULES
from xmem.pipeline import Analysis

_CATEGORIES = [category.label for category in Category]


@dataclass(frozen=True)
class Delta:
    """By how many bytes something changed the memory, less what it gave back."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0

    def __add__(self, other: Delta) -> Delta:
        return Delta(self.allocated_bytes + other.allocated_bytes, self.reserved_bytes + other.reserved_bytes)


@dataclass(frozen=True)
class ModuleNode:
    """A module with all that lies in it; bytes are those of blocks, rounding and slack included.

    Attributes:
        name: The last part of the path.
        path: Such as ``GPT.blocks.3.mlp``; empty for the root of the tree.
        category: Bytes at the peak by category, most first.
        forward_bytes: Of these, allocated in the forward pass.
        backward_bytes: Of these, allocated in the backward pass.
        persistent_bytes: Of these, in blocks that outlive their iteration.
        forward: What its forward changed in the iteration of the peak; None where that is not known: a
            what-if changed the run, or the trace has no iterations.
        backward: The same of its backward.
        tensors: Bytes of its named tensors by category (parameter, buffer, gradient, optimizer_state),
            whether they are alive at the peak or not; empty for a trace that names none.
        children: In the order in which they first appear.
    """

    name: str
    path: str
    category: Mapping[str, int]
    forward_bytes: int
    backward_bytes: int
    persistent_bytes: int
    forward: Delta | None
    backward: Delta | None
    tensors: Mapping[str, int]
    children: tuple[ModuleNode, ...]

    @property
    def bytes(self) -> int:
        """All of its bytes at the peak."""
        return sum(self.category.values())

    def walk(self) -> Iterator[ModuleNode]:
        """The module and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def module_tree(analysis: Analysis) -> ModuleNode:
    """The modules of a run, below a root that holds all bytes allocated at the peak."""
    sums = _Sums()
    _add_tensors(sums, analysis)
    _add_peak(sums, analysis)
    execution = execution_of(analysis)
    if execution is not None:
        _add_execution(sums, execution)
    return sums.root.node("", known=execution is not None)


@dataclass
class _Own:
    """What is of a module itself and of none inside of it, while it is added up."""

    name: str
    category: Counter[str] = field(default_factory=Counter)
    phase: Counter[Phase] = field(default_factory=Counter)
    persistent_bytes: int = 0
    forward: Delta = Delta()
    backward: Delta = Delta()
    tensors: Counter[str] = field(default_factory=Counter)
    children: list[_Own] = field(default_factory=list)

    def node(self, path: str, *, known: bool) -> ModuleNode:
        """The module with all below it."""
        children = tuple(
            child.node(f"{path}.{child.name}" if path else child.name, known=known) for child in self.children
        )
        category, tensors = self.category, self.tensors
        for child in children:
            category.update(child.category)
            tensors.update(child.tensors)
        return ModuleNode(
            name=self.name,
            path=path,
            category=dict(category.most_common()),
            forward_bytes=self.phase[Phase.FORWARD] + sum(child.forward_bytes for child in children),
            backward_bytes=self.phase[Phase.BACKWARD] + sum(child.backward_bytes for child in children),
            persistent_bytes=self.persistent_bytes + sum(child.persistent_bytes for child in children),
            forward=sum((child.forward for child in children if child.forward), self.forward)
            if known
            else None,
            backward=sum((child.backward for child in children if child.backward), self.backward)
            if known
            else None,
            tensors=dict(tensors),
            children=children,
        )


class _Sums:
    """The modules by path, made where they are missing, in the order in which they first appear."""

    def __init__(self) -> None:
        self.root = _Own("")
        self._by_path = {"": self.root}

    def __getitem__(self, path: str) -> _Own:
        found = self._by_path.get(path)
        if found is None:
            # What runs outside of modules is a child of the root, whose name holds no dot.
            above, _, name = path.rpartition(".")
            found = self._by_path[path] = _Own(name)
            self[above].children.append(found)
        return found


def _add_tensors(sums: _Sums, analysis: Analysis) -> None:
    """Each named tensor once: a parameter is a new block for every model that it moves to, a gradient for
    every iteration.
    """
    workload, holders = analysis.stages.workload, analysis.holders
    names = (analysis.stages.trace.metadata or {}).get("tensors", {}).get("name", ())
    held = taken_bytes(workload, analysis.stages.requests, analysis.replay)
    latest = {
        (int(workload.category[row]), names[workload.tensor[row]]): row
        for row in np.flatnonzero((workload.tensor >= 0) & (holders.module >= 0)).tolist()
    }
    for (category, _), row in latest.items():
        sums[holders.modules[holders.module[row]]].tensors[_CATEGORIES[category]] += int(held[row])


def _add_peak(sums: _Sums, analysis: Analysis) -> None:
    holders = analysis.holders
    rows = holders.alive_at(analysis.replay.peak_allocated.request)
    held = analysis.replay.placement.size_bytes[rows]
    names = [*holders.modules, OUTSIDE_OF_MODULES]
    key = (holders.module[rows].astype(np.int64) * len(Category) + holders.category[rows]) * len(Phase)
    key = (key + holders.phase[rows]) * 2 + holders.persistent[rows]
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    bytes_of = np.zeros(len(first), np.int64)
    np.add.at(bytes_of, which, held)
    for row, bytes_ in zip(rows[first].tolist(), bytes_of.tolist(), strict=True):
        module = sums[names[holders.module[row]]]
        module.category[_CATEGORIES[holders.category[row]]] += bytes_
        module.phase[Phase(int(holders.phase[row]))] += bytes_
        module.persistent_bytes += bytes_ if holders.persistent[row] else 0


def _add_execution(sums: _Sums, execution: Execution) -> None:
    names = [*execution.modules, OUTSIDE_OF_MODULES]
    for index, delta in deltas(execution, execution.module, execution.phase == Phase.FORWARD):
        sums[names[index]].forward += delta
    for index, delta in deltas(execution, execution.module, execution.phase == Phase.BACKWARD):
        sums[names[index]].backward += delta


def deltas(
    execution: Execution, of: NDArray[np.intp], chosen: NDArray[np.bool_]
) -> Iterator[tuple[int, Delta]]:
    """The change by each of some indices of requests.

    Args:
        execution: What ran.
        of: intp, one index a request, -1 = none.
        chosen: bool, the requests to add up.
    """
    requests = np.flatnonzero(chosen)
    found, which = np.unique(of[requests], return_inverse=True)
    allocated, reserved = np.zeros(len(found), np.int64), np.zeros(len(found), np.int64)
    np.add.at(allocated, which, execution.allocated_bytes[requests])
    np.add.at(reserved, which, execution.reserved_bytes[requests])
    for index, *change in zip(found.tolist(), allocated.tolist(), reserved.tolist(), strict=True):
        yield index, Delta(*change)
