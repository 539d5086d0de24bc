"""Blocks that a CUDA kernel allocates where the CPU's needs none."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from xmem.run.operators import OperatorIndex
from xmem.run.workload import Workload, concatenated, made_like
from xmem.trace.attribution import Category
from xmem.trace.blocks import NEVER

ELSEWHERE = ("", 0)
"""A step of ``AddedBlocks.add_in_order``."""


class AddedBlocks:
    """Collects blocks that a policy adds to a workload, and adds them all at once.

    Each is made like a row of the workload: it has its operator, module, phase and iteration.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._like: list[int] = []
        self._size_bytes: list[int] = []
        self._alloc_ns: list[int] = []
        self._free_ns: list[int] = []
        self._category: list[int] = []

    def add(
        self,
        like: int,
        size_bytes: int,
        alloc_ns: int,
        free_ns: int = NEVER,
        category: Category = Category.WORKSPACE,
    ) -> None:
        """Add a block, unless it would be empty."""
        if size_bytes > 0:
            self._like.append(like)
            self._size_bytes.append(size_bytes)
            self._alloc_ns.append(alloc_ns)
            self._free_ns.append(free_ns)
            self._category.append(category)

    def add_in_order(self, like: int, begin_ns: int, steps: Iterable[tuple[str, int]]) -> None:
        """Add the blocks of one kernel, a nanosecond apart: order is all that matters.

        Args:
            like: Row of the workload that the blocks resemble.
            begin_ns: The instant of the first step.
            steps: A name and a size allocate, the same name and 0 free; ``ELSEWHERE`` is a nanosecond in
                which the kernel allocates a block that is there. What is left is freed at the end, the
                youngest first, as C++ leaves a scope.
        """
        held: dict[str, tuple[int, int]] = {}
        time_ns = begin_ns
        for step in steps:
            name, size_bytes = step
            if size_bytes > 0:
                held[name] = size_bytes, time_ns
            elif step != ELSEWHERE:
                self.add(like, *held.pop(name), time_ns)
            time_ns += 1
        for size_bytes, alloc_ns in reversed(held.values()):
            self.add(like, size_bytes, alloc_ns, time_ns)
            time_ns += 1

    def added(self) -> Workload:
        """Return the workload with these blocks; at equal times they come first."""
        if not self._like:
            return self._workload
        rows = self._workload.select(np.array(self._like, np.intp))
        blocks = made_like(
            rows,
            size_bytes=self._size_bytes,
            alloc_ns=self._alloc_ns,
            free_ns=self._free_ns,
            category=self._category,
        )
        return concatenated([blocks, self._workload])


def first_blocks(
    workload: Workload, operators: OperatorIndex, rows: NDArray[np.int32], *, lasting: bool = False
) -> list[int]:
    """Return the first block that each operator allocates, a row of the workload, -1 = none.

    Args:
        workload: The blocks.
        operators: The operators of the run.
        rows: Rows of the EventTable.
        lasting: Whether to leave out blocks that end with the operator.
    """
    owner = operators.rows_owned_by(workload.operator, rows)
    wanted = owner >= 0
    if lasting:
        wanted &= workload.free_ns > operators.events.end_ns[rows[owner]]
    first = [-1] * len(rows)
    for block in np.flatnonzero(wanted)[::-1]:
        first[owner[block]] = int(block)
    return first
