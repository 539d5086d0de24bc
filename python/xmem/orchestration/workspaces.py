"""Memory of CUDA's libraries that comes from the caching allocator."""

from __future__ import annotations

import numpy as np

from xmem.attribution import Category, Phase
from xmem.blocks import NEVER
from xmem.orchestration.operators import HOST, OPERATOR, covered
from xmem.orchestration.policy import Context, Target
from xmem.orchestration.workload import Workload

_GEMMS = frozenset(
    {"aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::addmv", "aten::mv"}
)

_DEFAULT_WORKSPACE = 2 * 4096 * 1024 + 8 * 16 * 1024  # the configuration :4096:2:16:8
_LARGE_WORKSPACE = 32 << 20


def cublas_workspace_bytes(target: Target) -> int:
    """Size of one cuBLAS workspace, by architecture and version.

    Source: `aten/src/ATen/cuda/CublasHandlePool.cpp`, `getChosenWorkspaceSize`: 32 MiB on Hopper, and on
    Blackwell (compute capability 10 and 12) from PR 175344 on, which by its date is 2.12; 8.125 MiB
    elsewhere.
    """
    major = target.compute_capability[0]
    large = major == 9 or (major in (10, 12) and target.torch_version >= (2, 12))
    return _LARGE_WORKSPACE if large else _DEFAULT_WORKSPACE


class AddCublasWorkspaces:
    """cuBLAS takes one workspace per handle and stream, at its first use, and keeps it.

    Handles are per thread: the forward runs on the main thread and the backward on autograd's device thread,
    so there are two (cpu_vs_cuda_memory, section 3.1; `CublasHandlePool.cpp`). Up to 2.13; later versions
    allocate per call.
    """

    name = "add_cublas_workspaces"
    description = "one cuBLAS workspace each for forward and backward, from the first matrix product on"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Add a workspace in the first matrix product of the forward and of the backward, behind its result."""
        events = context.trace.events
        gemms = np.flatnonzero(context.operators.rows_named(_GEMMS)).astype(np.int32)
        hosts = np.flatnonzero(events.kind == HOST)
        gemms = gemms[~covered(events.begin_ns[gemms], events.begin_ns[hosts], events.end_ns[hosts])]
        evaluates = context.operators.rows_named(
            lambda name: name.startswith("autograd::engine::evaluate_function"), OPERATOR
        )
        in_backward = context.operators.enclosing(gemms, evaluates) >= 0
        for phase, rows in ((Phase.FORWARD, gemms[~in_backward]), (Phase.BACKWARD, gemms[in_backward])):
            if len(rows) == 0:
                continue
            first = int(rows[np.argmin(events.begin_ns[rows])])
            begin_ns = int(events.begin_ns[first])
            results = workload.select(workload.operator == first)
            workload = workload.with_added(
                size_bytes=cublas_workspace_bytes(context.target),
                alloc_ns=int(results.alloc_ns[0]) + 1 if len(results) else begin_ns,
                free_ns=NEVER,
                category=Category.WORKSPACE,
                phase=phase,
                iteration=_iteration_at(workload, begin_ns),
                operator=first,
                root_operator=first,
                module=int(results.module[0]) if len(results) else -1,
            )
        return workload


class RecognizeCublasWorkspaces:
    """On a GPU the workspaces are in the trace: blocks of their size that a product makes and nobody
    frees."""

    name = "recognize_cublas_workspaces"
    description = "blocks that matrix products allocate for cuBLAS are told from their results"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Give them their category."""
        operators = workload.operator
        made_by_product = (operators >= 0) & context.operators.rows_named(_GEMMS)[operators]
        kept = (workload.free_ns == NEVER) & (workload.tensor < 0)
        sized = np.isin(workload.size_bytes, (_DEFAULT_WORKSPACE, _LARGE_WORKSPACE))
        category = np.where(made_by_product & kept & sized, Category.WORKSPACE, workload.category)
        return workload.with_columns(category=category.astype(workload.category.dtype))


def _iteration_at(workload: Workload, time_ns: int) -> int:
    """Iteration of the next block of the trace that is born: the product's own output."""
    after = int(np.searchsorted(workload.alloc_ns, time_ns))
    return int(workload.iteration[after]) if after < len(workload) else -1
