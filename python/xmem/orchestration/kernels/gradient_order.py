"""The order in which a backward operator makes its results, where the devices differ."""

from __future__ import annotations

import numpy as np

from xmem.run.recorded import Context
from xmem.run.workload import Workload, concatenated


class OrderBatchNormGradients:
    """A batch norm's backward makes the gradient of its input first on CUDA, and last on the CPU.

    Sizes and ends are the same, but what comes first takes the better hole. Source:
    `aten/src/ATen/native/cudnn/BatchNorm.cpp`, `cudnn_batch_norm_backward`: `grad_input_t`, `grad_weight_t`,
    `grad_bias_t`; `aten/src/ATen/native/Normalization.cpp`, `batch_norm_backward_cpu_template`.
    """

    name = "order_batch_norm_gradients"
    description = "a batch norm's backward makes the gradient of its input before those of its parameters"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Give the largest result of each backward the first place, and the others the next ones."""
        operators = context.operators
        node = operators.enclosing(
            workload.operator, operators.rows_named({"aten::native_batch_norm_backward"})
        )
        results = np.flatnonzero((node >= 0) & (workload.free_ns > context.trace.events.end_ns[node]))
        groups = np.split(results, np.flatnonzero(np.diff(node[results])) + 1)
        alloc_ns = workload.alloc_ns.copy()
        for group in groups:
            largest_first = np.argsort(-workload.size_bytes[group], kind="stable")
            alloc_ns[group[largest_first]] = workload.alloc_ns[group]
        return concatenated([workload.with_columns(alloc_ns=alloc_ns)])
