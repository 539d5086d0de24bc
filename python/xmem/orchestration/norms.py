"""Normalisations: what the CPU's kernels need beside their results, and what CUDA fuses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.orchestration.operators import OperatorIndex
from xmem.orchestration.policy import Context
from xmem.orchestration.workload import Workload

_KERNELS = frozenset(
    {"aten::native_batch_norm", "aten::native_batch_norm_backward", "aten::native_layer_norm_backward"}
)

_FUSED_FROM = (2, 8)


class DropNormTemporaries:
    """Blocks that are born and die inside one of the CPU's normalisations; CUDA's have results only.

    `native_batch_norm_backward` on the CPU makes a second tensor of the input's size before the gradient
    (cpu_vs_cuda_memory, section 5.1; torch 2.6 and 2.13); CUDA asks for the gradient in its place, before
    those of weight and bias (seen with 2.6.0 and 2.12.0, contiguous and channels-last alike). Neither of the
    two allocates buffers in the backward of layer norm, up to 65,536 rows.
    """

    name = "drop_norm_temporaries"
    description = "batch norm on the CPU makes a second gradient of the input, and others small buffers"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Drop the temporaries; the gradient of a batch norm's input comes first."""
        operators = context.operators
        rows = np.flatnonzero(operators.rows_named(_KERNELS)).astype(np.int32)
        owner = operators.rows_owned_by(workload.operator, rows)
        owned = owner >= 0
        ends_ns = np.where(owned, operators.events.end_ns[rows[owner]], 0) if len(rows) else 0
        temporary = owned & (workload.free_ns <= ends_ns)
        if not temporary.any():
            return workload
        alloc_ns = workload.alloc_ns.copy()
        backward = operators.rows_named({"aten::native_batch_norm_backward"})
        in_backward = np.flatnonzero(owned & backward[rows[owner]])
        key = list(zip(owner[in_backward].tolist(), workload.size_bytes[in_backward].tolist(), strict=True))
        last = {key[at]: row for at, row in enumerate(in_backward) if not temporary[row]}
        for at, row in enumerate(in_backward):
            if temporary[row] and key[at] in last:
                alloc_ns[last[key[at]]] = workload.alloc_ns[row]
        kept = workload.with_columns(alloc_ns=alloc_ns).select(~temporary)
        return kept.select(np.argsort(kept.alloc_ns, kind="stable"))


class FuseRmsNorm:
    """`F.rms_norm` is one kernel on CUDA from torch 2.8 on: it keeps its input and a number a row.

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
        result = _last_of_each(_made_by(operators, workload, "aten::mul", forward))
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
        gradients = np.where(drop, -1, of_norm)
        first, last = _first_of_each(gradients), _last_of_each(gradients)
        for norm in first:  # the gradient of the input, the last to be made, comes first
            alloc_ns[last[norm]] = workload.alloc_ns[first[norm]] - 1
        kept = workload.with_columns(alloc_ns=alloc_ns).select(~drop)
        return kept.select(np.argsort(kept.alloc_ns, kind="stable"))


def fused_norms(context: Context) -> NDArray[np.int32]:
    """Rows of the operators that are one kernel on the target and several on the CPU."""
    if context.target.torch_version < _FUSED_FROM:
        return np.zeros(0, np.int32)
    return np.flatnonzero(context.operators.rows_named({"aten::rms_norm"})).astype(np.int32)


def _made_by(
    operators: OperatorIndex, workload: Workload, maker: str, owner: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The owners of the blocks that an operator of this name makes, -1 for all others."""
    made = operators.enclosing(workload.operator, operators.rows_named({maker})) >= 0
    return np.where(made, owner, -1)


def _first_of_each(owner: NDArray[np.int32]) -> dict[int, int]:
    """The first row of each owner, of those that have one."""
    return {int(owner[row]): int(row) for row in np.flatnonzero(owner >= 0)[::-1]}


def _last_of_each(owner: NDArray[np.int32]) -> dict[int, int]:
    """The last row of each owner, of those that have one."""
    return {int(owner[row]): int(row) for row in np.flatnonzero(owner >= 0)}


def _backward_ends_ns(operators: OperatorIndex, forward: NDArray[np.int32]) -> NDArray[np.int64]:
    """When the last node of the backward of each forward operator ends; before all time where it has none."""
    nodes = np.flatnonzero(operators.events.sequence_number >= 0).astype(np.int32)
    nodes = nodes[operators.in_backward(nodes)]
    owner = operators.rows_owned_by(operators.forward_of(nodes), forward)
    ends_ns = np.full(len(forward), -1, np.int64)
    np.maximum.at(ends_ns, owner[owner >= 0], operators.events.end_ns[nodes[owner >= 0]])
    return ends_ns
