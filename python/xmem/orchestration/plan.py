"""Which policies apply to which kind of trace, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from xmem.orchestration.cpu_kernels import DropCpuKernelTemporaries
from xmem.orchestration.dropout import ResizeDropoutMasks
from xmem.orchestration.gradient_order import OrderBatchNormGradients
from xmem.orchestration.host_memory import AddMemoryBeforeTrace, AddTensorsBeforeTrace, DropHostMemory
from xmem.orchestration.lifetimes import (
    BatchDataPerIteration,
    GradientsUntilZeroGrad,
    PermanentOptimizerState,
    PersistentParameters,
    RecordedActivations,
)
from xmem.orchestration.onednn import DropOneDnnTemporaries
from xmem.orchestration.operands import DropConvertedOperands
from xmem.orchestration.policy import Context, Policy, Recorded
from xmem.orchestration.recorded_requests import RecordedRequests
from xmem.orchestration.softmax import AddSoftmaxBackwardProducts
from xmem.orchestration.workspaces import AddCublasWorkspaces, RecognizeCublasWorkspaces


@dataclass(frozen=True)
class Plan:
    """The policies for one kind of trace.

    Attributes:
        facts: What the capture knows of the run and the profiler did not write; they hold for any target.
        corrections: What is different on the target, applied after the facts.
    """

    facts: tuple[Policy[Recorded], ...]
    corrections: tuple[Policy[Context], ...]


CPU_TRACE = Plan(
    facts=(DropHostMemory(), AddTensorsBeforeTrace()),
    corrections=(
        DropOneDnnTemporaries(),
        DropCpuKernelTemporaries(),
        DropConvertedOperands(),
        OrderBatchNormGradients(),
        ResizeDropoutMasks(),
        PersistentParameters(),
        BatchDataPerIteration(),
        RecordedActivations(),
        GradientsUntilZeroGrad(),
        PermanentOptimizerState(),
        AddSoftmaxBackwardProducts(),
        AddCublasWorkspaces(),
    ),
)
"""A run on the CPU: first what is not on a GPU, then what differs there, then lifetimes, then what only a
GPU has.
"""

GPU_TRACE = Plan(
    facts=(RecordedRequests(), AddMemoryBeforeTrace()),
    corrections=(RecognizeCublasWorkspaces(),),
)
"""A run on a GPU, real or phantom, needs no corrections: only what its trace does not show."""
