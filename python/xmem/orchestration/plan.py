"""Decides which policies apply to which kind of trace, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from xmem.errors import ConfigError
from xmem.orchestration.attention.fused_attention import ReplaceAttention
from xmem.orchestration.convolution.cudnn_convolutions import AddConvolutionWorkspaces, OrderConvolutionBlocks
from xmem.orchestration.kernels.converted_operands import DropConvertedOperands
from xmem.orchestration.kernels.cpu_kernels import DropCpuKernelTemporaries
from xmem.orchestration.kernels.dropout_masks import ResizeDropoutMasks
from xmem.orchestration.kernels.fused_norms import FuseRmsNorm
from xmem.orchestration.kernels.gradient_order import OrderBatchNormGradients
from xmem.orchestration.kernels.onednn_temporaries import DropOneDnnTemporaries
from xmem.orchestration.kernels.reductions import AddReductionBuffers
from xmem.orchestration.kernels.scatter_buffers import AddEmbeddingBackwardBuffers, AddIndexBackwardBuffers
from xmem.orchestration.kernels.softmax_products import AddSoftmaxBackwardProducts
from xmem.orchestration.lifetimes.cuda_streams import AssignStreams
from xmem.orchestration.lifetimes.host_blocks import (
    AddMemoryBeforeTrace,
    AddTensorsBeforeTrace,
    DropHostMemory,
)
from xmem.orchestration.lifetimes.lifetime_rules import (
    BatchDataPerIteration,
    GradientsUntilZeroGrad,
    PermanentOptimizerState,
    PersistentParameters,
    RecordedActivations,
)
from xmem.orchestration.lifetimes.recorded_requests import RecordedRequests
from xmem.orchestration.lifetimes.state_before_trace import AddStateBeforeTrace
from xmem.orchestration.matmul.autocast_copies import AddAutocastCopies
from xmem.orchestration.matmul.cublas_workspaces import (
    AddCublasLtWorkspaces,
    AddCublasWorkspaces,
    RecognizeCublasWorkspaces,
)
from xmem.orchestration.optimizer.optimizer_temporaries import DropStepCounters, ReplaceOptimizerTemporaries
from xmem.orchestration.policy import Policy
from xmem.orchestration.recurrent.cudnn_layers import ReplaceRecurrentLayers
from xmem.orchestration.user_policies import user_policies, user_policy_names
from xmem.records import dataclass
from xmem.run.recorded import Context, Recorded
from xmem.text.nearest import nearest


@dataclass(frozen=True)
class Plan:
    """The policies for one kind of trace.

    Attributes:
        facts: Policies for what the capture knows about the run and the profiler did not write, for any
            target.
        corrections: Policies for what differs on the target, applied after the facts.
        by_gpu: Whether a correction may look at the GPU's description, beyond its compute capability.
        off: Names of policies that are switched off.
    """

    facts: tuple[Policy[Recorded], ...]
    corrections: tuple[Policy[Context], ...]
    by_gpu: bool
    off: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Policy[Any]]:
        yield from self.facts
        yield from self.corrections


CPU_TRACE = Plan(
    facts=(DropHostMemory(), AssignStreams(), AddTensorsBeforeTrace(), AddStateBeforeTrace()),
    corrections=(
        ReplaceAttention(),
        ReplaceRecurrentLayers(),
        DropOneDnnTemporaries(),
        OrderConvolutionBlocks(),
        DropCpuKernelTemporaries(),
        DropConvertedOperands(),
        OrderBatchNormGradients(),
        FuseRmsNorm(),
        AddAutocastCopies(),
        ResizeDropoutMasks(),
        DropStepCounters(),
        ReplaceOptimizerTemporaries(),
        PersistentParameters(),
        BatchDataPerIteration(),
        RecordedActivations(),
        GradientsUntilZeroGrad(),
        PermanentOptimizerState(),
        AddSoftmaxBackwardProducts(),
        AddEmbeddingBackwardBuffers(),
        AddIndexBackwardBuffers(),
        AddReductionBuffers(),
        AddConvolutionWorkspaces(),
        AddCublasWorkspaces(),
        AddCublasLtWorkspaces(),
    ),
    by_gpu=True,
)
"""A run on the CPU: first what is not on a GPU, then what differs there, then lifetimes, then what only a
GPU has.
"""

GPU_TRACE = Plan(
    facts=(RecordedRequests(), AddMemoryBeforeTrace(), AddStateBeforeTrace()),
    corrections=(RecognizeCublasWorkspaces(),),
    by_gpu=False,
)
"""A run on a GPU, real or phantom, needs no corrections: only what its trace does not show."""


def plan_for(*, gpu_trace: bool, without: Iterable[str] = ()) -> Plan:
    """Return the built-in policies for one kind of trace, then those of installed packages.

    Args:
        gpu_trace: Whether the trace was recorded on a GPU, real or phantom.
        without: Names of policies to switch off; those that are not for this kind of trace do nothing anyway.

    Raises:
        ConfigError: No such policy, or a package's policy cannot be used.
    """
    off = frozenset(without)
    require_policies(off)
    plan = GPU_TRACE if gpu_trace else CPU_TRACE
    others = user_policies(gpu_trace=gpu_trace, unloaded=off)
    return replace(
        plan, corrections=(*plan.corrections, *others), by_gpu=plan.by_gpu or bool(others), off=off
    )


def require_policies(names: Iterable[str]) -> None:
    """Check that these are names of policies, without loading any.

    Raises:
        ConfigError: One is not, or two packages have policies of one name.
    """
    known = policy_names()
    for name in sorted(set(names).difference(known)):
        near = nearest(name, known)
        did_you_mean = f"did you mean {near[0]}? Use " if near else "use "
        raise ConfigError(f"unknown policy {name!r}", f"{did_you_mean}one of {', '.join(known)}")


def policy_names() -> list[str]:
    """Return the names of all policies that can be switched off: the built-in ones in order, then those of
    installed packages."""
    built_in = dict.fromkeys(policy.name for policy in (*CPU_TRACE, *GPU_TRACE))
    return [*built_in, *user_policy_names(frozenset(built_in))]
