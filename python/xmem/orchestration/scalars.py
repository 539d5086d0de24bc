"""Python's numbers in arithmetic with tensors: the CPU's kernels put them into tensors of their own."""

from __future__ import annotations

import numpy as np

from xmem.orchestration.policy import Context
from xmem.orchestration.workload import Workload

_ARITHMETIC = frozenset(
    f"aten::{name}{in_place}" for name in ("add", "sub", "mul", "div") for in_place in ("", "_")
) | {"aten::rsub"}
_LARGEST_NUMBER = 16  # a complex one of two doubles


class DropWrappedNumbers:
    """`x * 2.0` wraps the number into a 0-dim tensor of 8 bytes, and casts it to the dtype of `x`.

    Both are host memory on a machine with a GPU: kernels take the number as an argument (cpu_vs_cuda_memory,
    section 11.4). On the CPU they are in the trace where a number meets a tensor of another dtype (torch 2.6
    and 2.13), and each would take 512 bytes. A result of one element outlives its operator and stays.
    """

    name = "drop_wrapped_numbers"
    description = "numbers of Python in arithmetic with tensors take no GPU memory"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Drop blocks of a number's size that are born and die inside one operator of arithmetic."""
        operators = context.operators
        small = np.flatnonzero(workload.size_bytes <= _LARGEST_NUMBER)
        owner = operators.enclosing(workload.operator[small], operators.rows_named(_ARITHMETIC))
        ends_ns = np.where(owner >= 0, operators.events.end_ns[owner], -1)
        kept = np.ones(len(workload), np.bool_)
        kept[small[workload.free_ns[small] <= ends_ns]] = False
        return workload if kept.all() else workload.select(kept)
