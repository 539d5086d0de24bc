"""Normalisations that CUDA fuses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.run.operators import OperatorIndex
from xmem.run.recorded import Context
from xmem.run.workload import Workload

_FUSED_FROM = (2, 8)
_NEAR = 64  # blocks of a size among which the input of a norm is looked for


class FuseRmsNorm:
    """`F.rms_norm` is one kernel on CUDA from torch 2.8 on: it keeps its input and one number per row.

    On the CPU `aten::rms_norm` is made of `pow`, `mean`, `rsqrt` and `mul`, and keeps the normalised input
    too; its backward is six nodes with up to four temporaries of the input's size. CUDA's forward allocates
    the result, then the reciprocal roots, its backward the two gradients (section 5.2; seen with 2.12.0,
    while 2.6.0 runs the composite). Models that write the norm in Python are the same on both.
    """

    name = "fuse_rms_norm"
    description = "rms_norm keeps its input and a number a row from torch 2.8 on, not the normalised input"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Drop what only the composite makes, in the forward and in its nodes of the backward."""
        operators = context.operators
        norms = fused_norms(context)
        if len(norms) == 0:
            return workload
        forward = operators.rows_owned_by(workload.operator, norms)
        result = _last_of_each(forward)  # in half precision it is cast back from float32
        roots = _last_of_each(_made_by(operators, workload, "aten::rsqrt", forward))
        drop = forward >= 0
        drop[[*result.values(), *roots.values()]] = False
        alloc_ns = workload.alloc_ns.copy()
        first = _first_of_each(forward)
        for norm, block in result.items():
            alloc_ns[block] = workload.alloc_ns[first[norm]]

        of_norm = operators.rows_owned_by(operators.forward_of(workload.operator), norms)
        in_backward = np.flatnonzero(of_norm >= 0)
        ends_ns = _backward_ends_ns(operators, norms)
        drop[in_backward] |= workload.free_ns[in_backward] <= ends_ns[of_norm[in_backward]]
        # What is added to another gradient at once ends with the nodes, and is made by the kernel too.
        result_bytes = np.full(len(norms), -1, np.int64)
        result_bytes[list(result)] = workload.size_bytes[list(result.values())]
        is_sized = workload.size_bytes[in_backward] == result_bytes[of_norm[in_backward]]
        sized = np.full_like(of_norm, -1)
        sized[in_backward[is_sized]] = of_norm[in_backward[is_sized]]
        drop[list(_last_of_each(sized).values())] = False
        free_ns = _until_the_backward(workload, result_bytes, first, ends_ns)
        gradients = np.where(drop, -1, of_norm)
        first, last = _first_of_each(gradients), _last_of_each(gradients)
        for norm in first:  # the gradient of the input, the last to be made, comes first
            alloc_ns[last[norm]] = workload.alloc_ns[first[norm]] - 1
        kept = workload.with_columns(alloc_ns=alloc_ns, free_ns=free_ns).select(~drop)
        return kept.select(np.argsort(kept.alloc_ns, kind="stable"))


def fused_norms(context: Context) -> NDArray[np.int32]:
    """Return the rows of the operators that are one kernel on the target and several on the CPU."""
    if context.target.torch_version < _FUSED_FROM:
        return np.zeros(0, np.int32)
    return np.flatnonzero(context.operators.rows_named({"aten::rms_norm"})).astype(np.int32)


def _until_the_backward(
    workload: Workload, result_bytes: NDArray[np.int64], first: dict[int, int], ends_ns: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the ends of blocks, with inputs in half precision kept for the backward: the composite keeps
    them as it casts them to float32.

    Args:
        workload: The blocks.
        result_bytes: Size of each norm's result, which is that of its input.
        first: The first block of each norm: the input in float32, if the input is in half precision.
        ends_ns: End of each norm's backward.
    """
    free_ns = workload.free_ns.copy()
    rows_of_size: dict[int, NDArray[np.intp]] = {}
    for norm, cast in first.items():
        wanted = int(result_bytes[norm])
        if workload.size_bytes[cast] != 2 * wanted:
            continue
        if wanted not in rows_of_size:
            rows_of_size[wanted] = np.flatnonzero(workload.size_bytes == wanted)
        rows = rows_of_size[wanted]
        before = int(np.searchsorted(rows, cast))
        near = rows[max(before - _NEAR, 0) : before]
        alive = near[workload.free_ns[near] > workload.alloc_ns[cast]]
        if len(alive) > 0:
            free_ns[alive[-1]] = max(free_ns[alive[-1]], ends_ns[norm])
    return free_ns


def _made_by(
    operators: OperatorIndex, workload: Workload, maker: str, owner: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the owners of the blocks that an operator of this name makes, -1 for all others."""
    made = operators.enclosing(workload.operator, operators.rows_named({maker})) >= 0
    return np.where(made, owner, -1)


def _first_of_each(owner: NDArray[np.int32]) -> dict[int, int]:
    """Return the first row of each owner that has one."""
    return {int(owner[row]): int(row) for row in np.flatnonzero(owner >= 0)[::-1]}


def _last_of_each(owner: NDArray[np.int32]) -> dict[int, int]:
    """Return the last row of each owner that has one."""
    return {int(owner[row]): int(row) for row in np.flatnonzero(owner >= 0)}


def _backward_ends_ns(operators: OperatorIndex, forward: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the end of the last backward node of each forward operator; before all time if it has none."""
    nodes = np.flatnonzero(operators.events.sequence_number >= 0).astype(np.int32)
    nodes = nodes[operators.in_backward(nodes)]
    owner = operators.rows_owned_by(operators.forward_of(nodes), forward)
    ends_ns = np.full(len(forward), -1, np.int64)
    np.maximum.at(ends_ns, owner[owner >= 0], operators.events.end_ns[nodes[owner >= 0]])
    return ends_ns
