"""Memory that a run held on its device according to its trace, whatever GPU it is moved to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from xmem.errors import ConfigError, TraceError
from xmem.estimation.stage_clock import StageClock
from xmem.estimation.verdict import Unreplayed
from xmem.files.sources import TraceSource
from xmem.orchestration.plan import Plan, plan_for, require_policies
from xmem.orchestration.policy import PolicyChange, apply_policies
from xmem.records import dataclass
from xmem.run.recorded import Recorded
from xmem.run.workload import Workload, workload_of
from xmem.trace.attribution import Attribution, Phase, attribute, trains
from xmem.trace.blocks import CPU, BlockTable, pair_blocks, traced_device
from xmem.trace.trace import Progress, Trace, read_trace
from xmem.whatif import WhatIf, parse_whatif


@dataclass(frozen=True)
class Scaled:
    """Part of an observation at a point of a fitted model that stems from the fit; columns have one row per
    block of the trace.

    Attributes:
        at: The point.
        fitted_from: Points of the runs.
        unverified: bool, sizes that the runs determined and none checked.
        uncertain: bool, sizes that no polynomial gives.
        least_bytes: int64, least possible size of an uncertain block; the workload has the largest.
        extra_bytes: Bytes of blocks that only other runs held.
        unreplayed: Most memory that the cards of the runs held beside what their replays show.
    """

    at: Mapping[str, int]
    fitted_from: tuple[Mapping[str, int], ...]
    unverified: NDArray[np.bool_]
    uncertain: NDArray[np.bool_]
    least_bytes: NDArray[np.int64]
    extra_bytes: int
    unreplayed: Unreplayed


@dataclass(frozen=True)
class Observation:
    """Memory that a run held on its device by its trace: the half of the pipeline independent of the target.

    Attributes:
        recorded: The trace as read, its blocks, and their allocators.
        workload: The blocks of the device that the trace saw most of, with the facts of the run applied.
        changes: Changes by each fact.
        plan: The policies for this kind of trace.
        device_type: Type of the traced device, 0 for the CPU.
        timings_s: Seconds by stage.
        scaled: Part that the fit of a model provides, None for a run as it was recorded.
        what_ifs: Changes of the script, applied in this order after the corrections.
    """

    recorded: Recorded
    workload: Workload
    changes: list[PolicyChange]
    plan: Plan
    device_type: int
    timings_s: dict[str, float]
    scaled: Scaled | None = None
    what_ifs: tuple[WhatIf, ...] = ()

    def what_if(self, *changes: WhatIf | str) -> Observation:
        """Return the run as it would be if its script were changed, after the changes made so far.

        Raises:
            ConfigError: There is no such change.
        """
        parsed = [parse_whatif(change) if isinstance(change, str) else change for change in changes]
        return replace(self, what_ifs=(*self.what_ifs, *parsed))

    def without_policies(self, *names: str) -> Observation:
        """Return the run with these policies switched off, in addition to those that already are.

        Raises:
            ConfigError: There is no such policy, or a model was fitted from runs that one of them changed.
        """
        if self.plan.off.issuperset(names):
            return self
        plan = plan_for(gpu_trace=self.device_type != CPU, without=self.plan.off.union(names))
        changed_facts = [policy.name for policy in plan.facts if policy.name in plan.off - self.plan.off]
        if not changed_facts:
            return replace(self, plan=plan)
        if self.scaled is not None:
            raise ConfigError(
                f"the policy {changed_facts[0]} cannot be switched off for a fitted model",
                "estimate the traces that it was fitted from",
            )
        workload, changes = _facts(self.recorded, plan)
        return replace(self, plan=plan, workload=workload, changes=changes)


def observe(
    trace: Trace | TraceSource,
    *,
    without_policies: Collection[str] = (),
    progress: Progress | None = None,
) -> Observation:
    """Run the pipeline as far as it does not depend on a target.

    Args:
        trace: A trace, or an input of ``read_trace``.
        without_policies: Names of policies to switch off.
        progress: Called now and then with the bytes of the trace read so far.

    Raises:
        TraceError: The trace cannot be used.
        ConfigError: There is no such policy, or one from an installed package is broken.
    """
    clock = StageClock()
    if without_policies:  # before the long part
        require_policies(without_policies)
    with clock.stage("read"):
        read = trace if isinstance(trace, Trace) else read_trace(trace, progress=progress)
    with clock.stage("pair"):
        blocks = pair_blocks(read)
    with clock.stage("attribute"):
        attribution = attribute(read, blocks)
    _require_a_run(read, blocks, attribution)
    with clock.stage("orchestrate"):
        recorded = Recorded(read, blocks, attribution)
        device_type, _ = recorded.traced_device
        plan = plan_for(gpu_trace=device_type != CPU, without=without_policies)
        workload, changes = _facts(recorded, plan)
    if len(workload) == 0:
        raise TraceError(
            "no device memory is left after host memory was set aside: the script trained on the CPU "
            "although it asked for a GPU; check where its model is moved to",
            read.path,
        )
    return Observation(recorded, workload, changes, plan, device_type, clock.seconds)


def _facts(recorded: Recorded, plan: Plan) -> tuple[Workload, list[PolicyChange]]:
    """Return the blocks of the traced device with the facts of the run applied, and the changes by each."""
    workload = workload_of(recorded.blocks, recorded.attribution, *recorded.traced_device)
    return apply_policies(plan.facts, workload, recorded, off=plan.off)


def _require_a_run(trace: Trace, blocks: BlockTable, attribution: Attribution) -> None:
    """Refuse a trace that does not say what its run needs: one of a GPU without its memory, or one of the CPU
    with gradients and without the optimizer, whose state is not known. Inference is accepted as it is."""
    if len(blocks) == 0:
        raise TraceError(
            "the trace holds no [memory] events; record it with profile_memory=True, or with: "
            "xmem-fast capture -o trace.json.gz -- python train.py",
            trace.path,
        )
    kernels = trace.kernels
    if kernels and not (blocks.device_type != CPU).any():
        raise TraceError(
            f"the trace has {kernels:,} GPU kernels but no memory events of a GPU, so it does not say what "
            "they needed; record it with profile_memory=True and PyTorch's own caching allocator (neither "
            "PYTORCH_NO_CUDA_MEMORY_CACHING=1 nor backend:cudaMallocAsync), or use: "
            "xmem-fast capture -o trace.json.gz -- python train.py",
            trace.path,
        )
    captured = trace.notes.iterations > 0
    on_cpu = traced_device(blocks)[0] == CPU
    learns = bool((attribution.phase == Phase.BACKWARD).any())
    if on_cpu and not captured and learns and not trains(attribution):
        raise TraceError(
            "the training loop was not seen: the trace holds no optimizer step; profile at least one whole "
            "iteration, or use: xmem-fast capture -o trace.json.gz -- python train.py",
            trace.path,
        )
    if len(trace.events) == 0:
        raise TraceError(
            "the trace holds no operators; record it with ProfilerActivity.CPU, or with: "
            "xmem-fast capture -o trace.json.gz -- python train.py",
            trace.path,
        )
