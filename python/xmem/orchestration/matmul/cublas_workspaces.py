"""The workspaces of cuBLAS and cublasLt, which come from the caching allocator.

Source: `aten/src/ATen/cuda/CublasHandlePool.cpp` and `CUDABlas.cpp`. Sizes and order of what is requested
were seen in the allocator's history of torch 2.6.0 and 2.12.0 on the phantom GPU.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from xmem.orchestration.recurrent.cudnn_layers import in_cudnn
from xmem.run.operators import HOST, OperatorIndex, covered
from xmem.run.recorded import Context
from xmem.run.target import Target
from xmem.run.workload import Workload, concatenated, made_like
from xmem.trace.attribution import Category, Phase
from xmem.trace.blocks import NEVER

MATRIX_PRODUCTS = frozenset(
    {"aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::addmv", "aten::mv"}
)
"""Operators that ask cuBLAS."""

_KIB = 1024
_DEFAULT_WORKSPACE = 2 * 4096 * _KIB + 8 * 16 * _KIB  # the configuration :4096:2:16:8
_LARGE_WORKSPACE = 32 << 20
_DEFAULT_LT_WORKSPACE = 1 << 20

# cublasLt's workspace is kept from the first of these on, and is cuBLAS's own from the second on.
_LT_KEPT_FROM = (2, 7)
_LT_SHARED_FROM = (2, 11)


def cublas_workspace_bytes(target: Target) -> int:
    """Return the size of one cuBLAS workspace, by architecture, version and `CUBLAS_WORKSPACE_CONFIG`.

    `parseChosenWorkspaceSize`: the variable's pairs `:SIZE_KIB:COUNT` are summed, one without any is ignored;
    by default 32 MiB on Hopper, and on Blackwell (compute capability 10 and 12) from PR 175344 on, which by
    its date is 2.12; 8.125 MiB elsewhere.
    """
    pairs = re.findall(r":([0-9]+):([0-9]+)", target.settings.variable("CUBLAS_WORKSPACE_CONFIG") or "")
    if pairs:
        return sum(int(size_kib) * _KIB * int(count) for size_kib, count in pairs)
    major = target.compute_capability[0]
    large = major == 9 or (major in (10, 12) and target.torch_version >= (2, 12))
    return _LARGE_WORKSPACE if large else _DEFAULT_WORKSPACE


def cublaslt_workspace_bytes(target: Target) -> int:
    """Return the size of a workspace that cublasLt takes besides cuBLAS's; 0 if it uses that one.

    1 MiB, or `CUBLASLT_WORKSPACE_SIZE` KiB. Shared by default from 2.11 on (PR 168175), between by
    `TORCH_CUBLASLT_UNIFIED_WORKSPACE`; none where `DISABLE_ADDMM_CUDA_LT` keeps products away from it.
    """
    variable = target.settings.variable
    unified = variable("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
    shared = target.torch_version >= _LT_SHARED_FROM if unified is None else unified == "1"
    if (shared and target.torch_version >= _LT_KEPT_FROM) or variable("DISABLE_ADDMM_CUDA_LT") == "1":
        return 0
    given = re.match(r"\s*([0-9]+)", variable("CUBLASLT_WORKSPACE_SIZE") or "")
    return int(given[1]) * _KIB if given else _DEFAULT_LT_WORKSPACE


class AddCublasWorkspaces:
    """cuBLAS takes one workspace per handle and stream, at its first use, and keeps it.

    Handles are per thread: the forward runs on the main thread and the backward on autograd's device thread,
    so there are two (cpu_vs_cuda_memory, section 3.1; `CublasHandlePool.cpp`). A product allocates its result
    first, then looks for its handle. Up to 2.13; later versions allocate per call.
    """

    name = "add_cublas_workspaces"
    description = "one cuBLAS workspace each for forward and backward, from the first matrix product on"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Add a workspace after the result of the first matrix product of the forward and of the backward."""
        size_bytes = cublas_workspace_bytes(context.target)
        for phase, first in _first_products(context):
            if size_bytes > 0:
                result = _result_of(workload, context.operators, first)
                # A product that allocates nothing: at its beginning, without an owner.
                begin_ns = int(
                    context.trace.events.begin_ns[first] if result is None else workload.alloc_ns[result] + 1
                )
                workload = workload.with_added(
                    size_bytes=size_bytes,
                    alloc_ns=begin_ns,
                    free_ns=NEVER,
                    category=Category.WORKSPACE,
                    phase=phase,
                    iteration=_iteration_at(workload, begin_ns),
                    operator=first,
                    root_operator=first,
                    module=-1 if result is None else int(workload.module[result]),
                    source_line=-1 if result is None else int(workload.source_line[result]),
                )
        return workload


class AddCublasLtWorkspaces:
    """Linear layers with a bias run in cublasLt, which up to 2.10 has a workspace of its own.

    Up to 2.6 `gemm_and_bias` allocates 1 MiB in each call and gives it back at its end (seen with 2.6.0: the
    result, cublasLt's workspace, then cuBLAS's at the first product); from 2.7 on it is kept per handle and
    stream, and from 2.11 on it is cuBLAS's (seen with 2.12.0). The biased product is `aten::addmm` in
    `aten::linear`; the backward's products have none.
    """

    name = "add_cublaslt_workspaces"
    description = "linear layers with a bias take a cublasLt workspace of 1 MiB, before torch 2.11"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Add one for each call, or one for each handle."""
        size_bytes = cublaslt_workspace_bytes(context.target)
        if size_bytes == 0:
            return workload
        operators = context.operators
        products = _products(context, {"aten::addmm"})
        products = products[operators.enclosing(products, operators.rows_named({"aten::linear"})) >= 0]
        kept = context.target.torch_version >= _LT_KEPT_FROM
        if kept:
            products = products[: min(1, len(products))]
        # a result is the block of the product itself, or of the call that makes it on the CPU
        of_product = operators.enclosing(
            workload.operator, np.isin(np.arange(len(operators.events)), products)
        )
        rows = np.flatnonzero(of_product >= 0)
        _, last = np.unique(of_product[rows][::-1], return_index=True)
        results = workload.select(np.sort(rows[len(rows) - 1 - last]))
        ends_ns = operators.events.end_ns[of_product[np.sort(rows[len(rows) - 1 - last])]]
        begins_ns = results.alloc_ns + 1
        added = made_like(
            results,
            size_bytes=size_bytes,
            alloc_ns=begins_ns,
            free_ns=np.where(kept, NEVER, np.maximum(begins_ns, ends_ns)),
            category=Category.WORKSPACE,
        )
        return concatenated([added, workload])


class RecognizeCublasWorkspaces:
    """On a GPU the workspaces are in the trace: blocks of their size that a product makes and nobody
    frees."""

    name = "recognize_cublas_workspaces"
    description = "blocks that matrix products allocate for cuBLAS are told apart from their results"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Give them their category."""
        operators = workload.operator
        made_by_product = (operators >= 0) & context.operators.rows_named(MATRIX_PRODUCTS)[operators]
        kept = (workload.free_ns == NEVER) & (workload.tensor < 0)
        sizes = (_DEFAULT_WORKSPACE, _LARGE_WORKSPACE, cublas_workspace_bytes(context.target))
        sized = np.isin(workload.size_bytes, sizes)
        category = np.where(made_by_product & kept & sized, Category.WORKSPACE, workload.category)
        return workload.with_columns(category=category.astype(workload.category.dtype))


def _products(context: Context, names: frozenset[str] | set[str]) -> NDArray[np.int32]:
    """Return the rows of the matrix products with these names that PyTorch computes on the GPU, by time."""
    operators, events = context.operators, context.trace.events
    rows = np.flatnonzero(operators.rows_named(names)).astype(np.int32)
    hosts = np.flatnonzero(events.kind == HOST)
    rows = rows[~covered(events.begin_ns[rows], events.begin_ns[hosts], events.end_ns[hosts])]
    rows = rows[~in_cudnn(context, rows)]
    return rows[np.argsort(events.begin_ns[rows], kind="stable")]


def _first_products(context: Context) -> list[tuple[Phase, int]]:
    """Return the first matrix product of each thread that has a handle."""
    products = _products(context, MATRIX_PRODUCTS)
    in_backward = context.operators.in_backward(products)
    by_phase = ((Phase.FORWARD, products[~in_backward]), (Phase.BACKWARD, products[in_backward]))
    return [(phase, int(rows[0])) for phase, rows in by_phase if len(rows)]


def _result_of(workload: Workload, operators: OperatorIndex, product: int) -> int | None:
    """Return the row of the block that a product allocates last, None if it allocates nothing."""
    this = np.zeros(len(operators.events), np.bool_)
    this[product] = True
    begin_ns, end_ns = operators.events.begin_ns[product], operators.events.end_ns[product]
    inside = np.flatnonzero((workload.alloc_ns >= begin_ns) & (workload.alloc_ns < end_ns))
    made = inside[operators.enclosing(workload.operator[inside], this) >= 0]
    return int(made[-1]) if len(made) else None


def _iteration_at(workload: Workload, time_ns: int) -> int:
    """Return the iteration of the last block born before (the product's own result), or else of the next
    one."""
    at = int(np.searchsorted(workload.alloc_ns, time_ns))
    return int(workload.iteration[max(at - 1, 0)]) if len(workload) else -1
