"""Holder of each block of memory, and the requests of its lifetime: the basis of every breakdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem.estimation.shown_lines import shown_line
from xmem.records import dataclass
from xmem.run.workload import Workload
from xmem.simulation.replay import RequestKind, Requests
from xmem.trace.attribution import Attribution, Category, Phase
from xmem.trace.blocks import NEVER
from xmem.trace.trace import Trace

OUTSIDE_OF_MODULES = "(outside of modules)"
OUTSIDE_OF_OPERATORS = "(outside of operators)"
NO_LINE = "(no line known)"


@dataclass(frozen=True)
class Holders:
    """One entry per row of the workload; indices into the lists of names, -1 = none.

    Attributes:
        category: uint8, an ``attribution.Category``.
        phase: uint8, an ``attribution.Phase`` of the allocation; ``OTHER`` before the first iteration.
        module: int32, index into ``modules``: the module that owns the tensor, else the one that ran.
        operator: int32, index into ``operators``: the outermost operator.
        line: int32, index into ``lines``.
        persistent: bool, whether it outlives the iteration that made it.
        alloc_request: int64, the request that allocates it.
        free_request: int64, the request that frees it, the number of requests where none does.
        modules: Module paths, such as ``GPT.blocks.3.mlp``.
        operators: Names of operators.
        lines: Source lines, ``PATH:LINE``.
    """

    category: NDArray[np.uint8]
    phase: NDArray[np.uint8]
    module: NDArray[np.int32]
    operator: NDArray[np.int32]
    line: NDArray[np.int32]
    persistent: NDArray[np.bool_]
    alloc_request: NDArray[np.int64]
    free_request: NDArray[np.int64]
    modules: list[str]
    operators: list[str]
    lines: list[str]

    def __len__(self) -> int:
        return len(self.category)

    def alive_at(self, request: int) -> NDArray[np.intp]:
        """Return the rows of the workload that are allocated after a request."""
        return np.flatnonzero((self.alloc_request <= request) & (self.free_request > request))

    def path_key(self, *, with_persistence: bool) -> NDArray[np.int64]:
        """Return a number per row, the same for rows whose holders are alike in every known respect.

        Args:
            with_persistence: Whether persistent rows differ from others.
        """
        key = np.zeros(len(self), np.int64)
        columns: list[tuple[NDArray[Any], int]] = [
            (self.category, len(Category)),
            (self.phase, len(Phase)),
            (self.module, len(self.modules)),
            (self.operator, len(self.operators)),
            (self.line, len(self.lines)),
        ]
        if with_persistence:
            columns.append((self.persistent, 2))
        for column, size in columns:
            key = key * (size + 1) + column.astype(np.int64) + 1  # -1, none, is 0
        return key

    def module_name(self, row: int) -> str | None:
        """Return the module of a row, None where there is none."""
        return _name(self.modules, int(self.module[row]))

    def operator_name(self, row: int) -> str | None:
        """Return the outermost operator of a row, None where there is none."""
        return _name(self.operators, int(self.operator[row]))

    def line_name(self, row: int) -> str | None:
        """Return the source line of a row, None where there is none."""
        return _name(self.lines, int(self.line[row]))


def holders_of(
    trace: Trace,
    attribution: Attribution,
    workload: Workload,
    requests: Requests,
    *,
    show_packages: bool = False,
) -> Holders:
    """Name the holders of a workload's blocks.

    Args:
        trace: The trace.
        attribution: Attribution of its blocks.
        workload: The blocks that were replayed.
        requests: The sequence of their requests.
        show_packages: Name the innermost source line outside of torch, including that of an installed
            package, instead of the user's own.
    """
    module, modules = _modules(trace, attribution, workload)
    operator, operators = _operators(trace, workload)
    line, lines = _renamed(
        workload.source_line, attribution.lines, shown_line(trace, show_packages=show_packages)
    )
    alloc_request, free_request = _lifetimes(requests, len(workload))
    begins = iteration_begins(workload)
    before_iterations = workload.alloc_ns < begins[0] if len(begins) else np.zeros(len(workload), np.bool_)
    return Holders(
        category=workload.category,
        phase=np.where(before_iterations, np.uint8(Phase.OTHER), workload.phase),
        module=module,
        operator=operator,
        line=line,
        persistent=_persistent(workload, begins),
        alloc_request=alloc_request,
        free_request=free_request,
        modules=modules,
        operators=operators,
        lines=lines,
    )


def module_of_tensor(role: str, name: str) -> str:
    """Return ``GPT.fc`` for ``GPT.fc.weight``, its gradient and its ``GPT.fc.weight.exp_avg``."""
    if role == "input":
        return ""
    return name.rsplit(".", 2 if role == "optimizer_state" else 1)[0]


def iteration_begins(workload: Workload) -> NDArray[np.int64]:
    """Return the time of the first allocation of each iteration: int64 nanoseconds."""
    count = int(workload.iteration.max(initial=-1)) + 1
    begins = np.full(count + 1, NEVER, np.int64)
    np.minimum.at(begins, workload.iteration, workload.alloc_ns)  # -1, outside of all, is the last entry
    # An iteration without blocks begins together with the next.
    return np.minimum.accumulate(begins[:count][::-1])[::-1]


def _name(names: Sequence[str], index: int) -> str | None:
    return names[index] if index >= 0 else None


def _modules(
    trace: Trace, attribution: Attribution, workload: Workload
) -> tuple[NDArray[np.int32], list[str]]:
    module = workload.module.copy()
    ids = {path: index for index, path in enumerate(attribution.modules)}
    tensors = trace.notes.tensors
    for row in np.flatnonzero(workload.tensor >= 0).tolist():
        tensor = workload.tensor[row]
        owner = module_of_tensor(tensors.role[tensor], tensors.name[tensor])
        if owner:
            module[row] = ids.setdefault(owner, len(ids))
    return module, list(ids)


def _operators(trace: Trace, workload: Workload) -> tuple[NDArray[np.int32], list[str]]:
    root = workload.root_operator
    names = np.where(root >= 0, trace.events.name[root], -1)
    used = np.zeros(1 + len(trace.names), np.bool_)  # np.unique would import masked arrays
    used[1 + names] = True
    used[0] = False
    ids = np.flatnonzero(used) - 1
    position = np.full(1 + len(trace.names), -1, np.int32)
    position[1 + ids] = np.arange(len(ids), dtype=np.int32)
    return position[1 + names], [trace.names[int(name)] for name in ids]


def _renamed(
    column: NDArray[np.int32], names: Sequence[str], rename: Callable[[str], str]
) -> tuple[NDArray[np.int32], list[str]]:
    """Map the column to other names, several of which may become one, and an empty one none."""
    ids: dict[str, int] = {}
    renamed = (rename(name) for name in names)
    of_old = [ids.setdefault(name, len(ids)) if name else -1 for name in renamed]
    return np.array([*of_old, -1], np.int32)[column], list(ids)


def _lifetimes(requests: Requests, blocks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    alloc_request = np.full(blocks, len(requests), np.int64)
    free_request = np.full(blocks, len(requests), np.int64)
    for column, kind in ((alloc_request, RequestKind.ALLOC), (free_request, RequestKind.FREE)):
        rows = np.flatnonzero(requests.kind == kind)
        column[requests.block[rows]] = rows
    return alloc_request, free_request


def _persistent(workload: Workload, begins: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether a block is alive when the iteration after its own begins, or at the end of the run."""
    next_begin = np.append(begins, NEVER)[workload.iteration + 1]
    persistent: NDArray[np.bool_] = (workload.free_ns == NEVER) | (workload.free_ns > next_begin)
    return persistent
