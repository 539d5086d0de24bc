"""Scratch of operators that CUDA runs as one kernel and the CPU as several."""

from __future__ import annotations

from xmem.run.recorded import Context
from xmem.run.workload import Workload

_KERNELS = frozenset(
    {
        # the mask's random integers (MKL), the mask in the input's dtype; in the backward a first product
        # (Dropout.cpp, native_dropout_cpu; Dropout.cu: fused_dropout_kernel)
        "aten::native_dropout",
        "aten::native_dropout_backward",
        "aten::bernoulli_",
        # scale and shift of a channel; in the backward a second gradient of the input
        # (native/cpu/batch_norm_kernel.cpp, native/Normalization.cpp; native/cudnn/BatchNorm.cpp)
        "aten::native_batch_norm",
        "aten::native_batch_norm_backward",
        # sums of each thread (native/layer_norm.cpp; native/cuda/layer_norm_kernel.cu)
        "aten::native_layer_norm_backward",
        # sums and packed operands of each thread (native/cpu/FlashAttentionKernel.cpp)
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    }
)
_COPIES = frozenset({"aten::contiguous"})


class DropCpuKernelTemporaries:
    """Blocks that are born inside one of these operators, at any depth, and die before it returns.

    What the operator returns outlives it, and copies that make an argument contiguous are made on both
    devices. Found by comparing captures of one job on the CPU and on the phantom GPU, torch 2.6 and 2.13
    (`bench/accuracy/compare_blocks.py`).
    """

    name = "drop_cpu_kernel_temporaries"
    description = "dropout, normalisation and attention are one kernel on a GPU, without the CPU's scratch"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Drop scratch, however deep inside its operator."""
        operators = context.operators
        kernel = operators.enclosing(workload.operator, operators.rows_named(_KERNELS))
        copy = operators.enclosing(workload.operator, operators.rows_named(_COPIES))
        events = context.trace.events
        copied_inside = (copy >= 0) & (events.begin_ns[copy] >= events.begin_ns[kernel])
        dies_inside = workload.free_ns <= events.end_ns[kernel]
        return workload.select(~((kernel >= 0) & dies_inside & ~copied_inside))
