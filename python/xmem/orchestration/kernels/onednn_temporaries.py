"""oneDNN's temporaries: reorders, packing and scratch that only the CPU's kernels need."""

from __future__ import annotations

from xmem.run.recorded import Context
from xmem.run.workload import Workload

_KERNELS = frozenset(
    {
        # blocked copies of input, weight and output, and scratch (cpu_vs_cuda_memory, section 2.1)
        "aten::mkldnn_convolution",
        "aten::_convolution",
        "aten::convolution_backward",
        "aten::mkldnn_convolution_backward",
        "aten::mkldnn_linear",
        # packing of low-precision operands (section 3.3)
        "aten::addmm",
        "aten::mm",
        "aten::bmm",
        "aten::baddbmm",
        # per-thread buffers of the CPU's attention kernel (section 4.2)
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    }
)


class DropOneDnnTemporaries:
    """Blocks that belong to one of these kernels itself and die before it returns; the result always
    outlives the kernel.

    Observed with torch 2.13.0 and oneDNN 3.12 (cpu_vs_cuda_memory, section 14). CUDA's own workspaces are
    another policy's matter.
    """

    name = "drop_onednn_temporaries"
    description = "reorders, packing and scratch of the CPU's kernels do not exist on a GPU"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Drop blocks that are born and die inside one CPU kernel."""
        kernels = context.operators.rows_named(_KERNELS)
        owned = (workload.operator >= 0) & kernels[workload.operator]
        dies_inside = workload.free_ns <= context.trace.events.end_ns[workload.operator]
        return workload.select(~(owned & dies_inside))
