"""A policy for a CUDA extension: its attention kernel takes a workspace that the CPU's version does not."""

from __future__ import annotations

import numpy as np

from xmem.orchestration import Context, Workload


class AddExampleWorkspace:
    """One byte a multiprocessor and KiB of the output of every `example::attention`."""

    name = "add_example_workspace"
    description = "the example's attention has a larger output on a GPU"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Enlarge what the operator allocates."""
        kernel = context.operators.rows_named({"example::attention"})
        made = context.operators.enclosing(workload.operator, kernel) >= 0
        device = context.target.device
        multiprocessors = device.multiprocessors if device else 1
        extra = workload.size_bytes // 1024 * multiprocessors
        return workload.with_columns(size_bytes=workload.size_bytes + np.where(made, extra, 0))
