"""The product that CUDA's softmax backward makes before it sums."""

from __future__ import annotations

import numpy as np

from xmem.run.recorded import Context
from xmem.run.workload import Workload, concatenated, made_like
from xmem.trace.attribution import Category


class AddSoftmaxBackwardProducts:
    """CUDA multiplies the incoming gradient by the softmax into a tensor of its own; the CPU's kernel goes
    row by row and needs none.

    Source: `aten/src/ATen/native/cuda/SoftMax.cu`, `softmax_backward_cuda_out`: `Tensor tmp = grad * output`,
    made after the result and freed with the call; the phantom GPU shows it with torch 2.6 and 2.12. The
    log-softmax has no such product. It is as large as the result; where a float gradient gives a result of
    half precision, it is larger, and counted too small here.
    """

    name = "add_softmax_backward_products"
    description = "the softmax's backward holds the product of gradient and softmax while it runs"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Add a product behind each result."""
        softmax = context.operators.rows_named({"aten::_softmax_backward_data"})
        rows = np.flatnonzero((workload.operator >= 0) & softmax[workload.operator])
        end_ns = context.trace.events.end_ns[workload.operator[rows]]
        returned = workload.free_ns[rows] > end_ns
        results = workload.select(rows[returned])
        products = made_like(results, free_ns=end_ns[returned], category=Category.TEMPORARY)
        return concatenated([workload, products])
