"""Dropout keeps a mask of one byte per element on CUDA, a tensor of the input's dtype on the CPU."""

from __future__ import annotations

import numpy as np

from xmem.dtypes import item_bytes
from xmem.run.recorded import Context
from xmem.run.workload import Workload


class ResizeDropoutMasks:
    """`aten::dropout` on the CPU makes noise with `empty_like`; CUDA runs `native_dropout`, whose mask is
    bool.

    Source: `aten/src/ATen/native/Dropout.cpp`, all versions since 1.12 (cpu_vs_cuda_memory, section 6).
    In-place dropout (`aten::dropout_`) is the same on both. Our own captures already run `native_dropout`,
    so nothing is left to change there.
    """

    name = "resize_dropout_masks"
    description = "dropout masks take one byte an element on CUDA, not one of the input's dtype"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Resize the noise of every out-of-place dropout."""
        operators = context.operators
        dropout = operators.enclosing(workload.operator, operators.rows_named({"aten::dropout"}))
        like = operators.enclosing(workload.operator, operators.rows_named({"aten::empty_like"}))
        rows = np.flatnonzero((dropout >= 0) & (like >= 0))
        # the noise is made by a direct child; an empty_like further down belongs to another operator
        rows = rows[operators.parent[like[rows]] == dropout[rows]]
        size_bytes = workload.size_bytes.copy()
        for row, dtype in zip(rows, operators.first_input_type(dropout[rows]), strict=True):
            size_bytes[row] //= item_bytes(dtype) or 4
        return workload.with_columns(size_bytes=size_bytes)
