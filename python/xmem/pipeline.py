"""From a trace to the answer: one page, a call a stage.

observe: read -> pair -> attribute -> choose the device -> facts of the run (observation.py)
run_stages: corrections for the target -> requests (move.py) -> replay (need.py)
conclude: verdict and evidence

``estimate`` gives the answer; ``analyze`` also what reports show beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xmem import alloc_conf as allocator_settings
from xmem import calibration, evidence
from xmem.alloc_conf import AllocatorOptions
from xmem.allocators import replay_through
from xmem.attribution import Attribution
from xmem.blocks import CPU, BlockTable, traced_device
from xmem.card import card_parts
from xmem.devices import Device, custom_device, find_device
from xmem.estimate_result import (
    Bounds,
    ConvolutionWorkspaces,
    Estimate,
    Interval,
    PolicyRecord,
    Scaling,
    Target,
    Verdict,
)
from xmem.holders import Holders, holders_of
from xmem.job_settings import alloc_conf_of, allocator_options, phantom_notes, torch_version_of
from xmem.large_blocks import largest_blocks
from xmem.move import move
from xmem.need import replay_without_limit
from xmem.observation import Observation, observe
from xmem.open_sizes import convolution_workspaces, left_open
from xmem.orchestration.policy import PolicyChange
from xmem.orchestration.workload import Workload
from xmem.simulation import Replay, Requests
from xmem.sources import TraceSource
from xmem.stage_clock import StageClock
from xmem.trace import Progress, Trace
from xmem.units import parse_bytes
from xmem.verdict import Judged, Unreplayed, judge
from xmem.whatif import WhatIf, parse_whatif


@dataclass(frozen=True)
class Stages:
    """Every intermediate result of an estimate, for inspection.

    Attributes:
        trace: As read.
        blocks: Allocations paired with frees.
        attribution: Who allocated each block, and when in the training step.
        workload: The device's blocks after all policies and changes of the script.
        corrected: The same before the script was changed.
        changes: What each policy changed.
        requests: The order in which the allocator sees them.
        unlimited: The replay on a device without limit: what the job would take if it could.
        unreplayed: What the cards held beside that.
        assumptions: What had to be assumed, in words.
        timings_s: Seconds by stage.
        scaling: How the run follows from others; None for a run as it was recorded.
        what_if: Changes of the script, as their texts.
        convolution_workspaces: Where those of a run on the CPU come from.
    """

    trace: Trace
    blocks: BlockTable
    attribution: Attribution
    workload: Workload
    corrected: Workload
    changes: list[PolicyChange]
    requests: Requests
    unlimited: Replay
    unreplayed: Unreplayed
    assumptions: tuple[str, ...]
    timings_s: dict[str, float]
    scaling: Scaling | None
    what_if: tuple[str, ...]
    convolution_workspaces: ConvolutionWorkspaces | None = None


@dataclass(frozen=True)
class Analysis:
    """An answer and all that it rests on: what reports are made from.

    Attributes:
        estimate: The answer.
        stages: Every intermediate result.
        verdict: What the card must have, and the replay that the evidence is about.
        holders: Who holds each block of the workload.
        options: Settings of the allocator.
        device: None when none was named.
        show_packages: Whether source lines are the innermost outside of torch, those of installed packages
            too, in place of the user's own.
    """

    estimate: Estimate
    stages: Stages
    verdict: Judged
    holders: Holders
    options: AllocatorOptions
    device: Device | None
    show_packages: bool

    @property
    def replay(self) -> Replay:
        """What the evidence is about."""
        return self.verdict.replay

    def holders_with(self, *, show_packages: bool) -> Holders:
        """Who holds each block, by the lines of installed packages or by the user's own."""
        return self.holders if show_packages == self.show_packages else _holders(self.stages, show_packages)


def estimate(
    trace: Observation | Trace | TraceSource,
    *,
    gpu: str | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    what_if: Sequence[WhatIf | str] = (),
    confidence: float = calibration.DEFAULT_CONFIDENCE,
    without_policies: Collection[str] = (),
    show_packages: bool = False,
    progress: Progress | None = None,
) -> Estimate:
    """Say how much GPU memory a training job will need, and whether it fits.

    Args:
        trace: A trace, what ``read_trace`` reads, or what ``observe`` made of it.
        gpu: Name of a GPU (``xmem-fast gpus``).
        capacity: Memory of the GPU in bytes or as text (``"11.5GiB"``); wins over that of ``gpu``.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the job; by default that of a run on the phantom GPU, else
            none.
        torch_version: PyTorch that will run the job; by default the one that wrote the trace, else 2.13.
        what_if: Changes of the script, such as ``"optimizer=adamw:fused"``, applied in this order.
        confidence: Of each bound of the interval, at least 0.5 and less than 1.
        without_policies: Names of policies to switch off (``xmem-fast policies``).
        show_packages: Name the innermost source line outside of torch, that of an installed package too, in
            place of the user's own.
        progress: Called now and then while the trace is read.

    Raises:
        TraceError: The trace cannot be used.
        ConfigError: The GPU, the capacity, the settings, the version, a change, the confidence or a policy
            is invalid.
    """
    return analyze(
        trace,
        gpu=gpu,
        capacity=capacity,
        alloc_conf=alloc_conf,
        torch_version=torch_version,
        what_if=what_if,
        confidence=confidence,
        without_policies=without_policies,
        show_packages=show_packages,
        progress=progress,
    ).estimate


def analyze(
    trace: Observation | Trace | TraceSource,
    *,
    gpu: str | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    what_if: Sequence[WhatIf | str] = (),
    confidence: float = calibration.DEFAULT_CONFIDENCE,
    without_policies: Collection[str] = (),
    show_packages: bool = False,
    progress: Progress | None = None,
) -> Analysis:
    """Estimate, and keep all that the answer rests on; arguments and errors are those of ``estimate``."""
    calibration.require_confidence(confidence)
    device = _device(gpu, capacity)
    changes = [parse_whatif(change) if isinstance(change, str) else change for change in what_if]
    if alloc_conf:  # before the long part
        allocator_settings.parse(alloc_conf, torch_version or allocator_settings.DEFAULT_TORCH_VERSION)
    if isinstance(trace, Observation):
        observed = trace.without_policies(*without_policies)
    else:
        observed = observe(trace, without_policies=without_policies, progress=progress)
    stages = run_stages(
        observed.what_if(*changes), device=device, alloc_conf=alloc_conf, torch_version=torch_version
    )
    return conclude(
        stages,
        device=device,
        alloc_conf=alloc_conf,
        torch_version=torch_version,
        confidence=confidence,
        show_packages=show_packages,
    )


def run_stages(
    trace: Observation | Trace | TraceSource,
    *,
    device: Device | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    progress: Progress | None = None,
) -> Stages:
    """Run the pipeline up to the replay on a device without limit.

    Raises:
        TraceError: The trace cannot be used.
        ConfigError: The settings or the version are invalid.
    """
    if alloc_conf:  # before the long part
        allocator_settings.parse(alloc_conf, torch_version or allocator_settings.DEFAULT_TORCH_VERSION)
    observed = trace if isinstance(trace, Observation) else observe(trace, progress=progress)
    clock = StageClock(dict(observed.timings_s))
    moved = move(observed, device, torch_version, clock=clock)
    without_limit = replay_without_limit(moved, alloc_conf, torch_version, clock=clock)
    workspaces = convolution_workspaces(
        moved, device, torch_version, without_limit.replay, without_limit.options
    )
    return Stages(
        trace=observed.recorded.trace,
        blocks=observed.recorded.blocks,
        attribution=observed.recorded.attribution,
        workload=moved.workload,
        corrected=moved.corrected,
        changes=[*observed.changes, *moved.corrections],
        requests=moved.requests,
        unlimited=without_limit.replay,
        unreplayed=without_limit.unreplayed,
        assumptions=(
            *evidence.assumptions(observed.recorded, observed.device_type, device),
            *([] if workspaces is None else [workspaces.source]),
        ),
        convolution_workspaces=workspaces,
        timings_s=clock.seconds,
        scaling=without_limit.scaling,
        what_if=tuple(change.text for change in observed.what_ifs),
    )


def conclude(
    stages: Stages,
    *,
    device: Device | None,
    alloc_conf: str | None,
    torch_version: str | None,
    confidence: float = calibration.DEFAULT_CONFIDENCE,
    show_packages: bool = False,
) -> Analysis:
    """Turn the stages into the answer; with a device, replay on it too."""
    clock = StageClock(dict(stages.timings_s))
    version = torch_version_of(stages.trace, torch_version)
    with clock.stage("replay"):
        options = allocator_options(stages.trace, alloc_conf, torch_version)
        verdict = judge(stages.requests, stages.unlimited, options, device, stages.unreplayed)
        bounds = _bounds(stages.requests, options)
    spread_bytes = evidence.spread_of_iterations(
        stages.trace, stages.workload, stages.requests, stages.unlimited
    )
    replayed = verdict.replay
    as_recorded = stages.scaling is None and not stages.what_if
    measured = evidence.measured(stages.trace, stages.unlimited, options) if as_recorded else None
    with clock.stage("evidence"):
        holders = _holders(stages, show_packages)
        witness = evidence.Witness(stages.workload, stages.requests, holders)
        answer = Estimate(
            peak_reserved_bytes=verdict.reserved_bytes,
            peak_allocated_bytes=replayed.peak_allocated.bytes,
            peak_requested_bytes=replayed.peak_requested.bytes,
            context_bytes=verdict.context_bytes,
            device_peak_bytes=verdict.need_bytes,
            interval=_interval(stages, verdict, bounds, spread_bytes, confidence),
            verdict=None
            if device is None
            else Verdict(
                gpu=device.name,
                capacity_bytes=device.total_memory_bytes,
                fits=verdict.fits is True,
                margin_bytes=device.total_memory_bytes - verdict.need_bytes,
            ),
            peak=witness.peak(replayed),
            breakdown=witness.breakdown(replayed),
            target=Target(
                gpu=device.slug if device and device.slug else None,
                capacity_bytes=-1 if device is None else device.total_memory_bytes,
                compute_capability=_capability_text(device),
                context_bytes=verdict.context_bytes,
                torch_version=version,
                alloc_conf=alloc_conf_of(stages.trace, alloc_conf),
            ),
            policies=_policy_records(stages, witness.peak_block(replayed)),
            assumptions=(*stages.assumptions, *evidence.batches_differ(spread_bytes)),
            simulation=witness.simulation(replayed, verdict.failed, bounds),
            measured=measured,
            scaling=stages.scaling,
            what_if=stages.what_if,
            diagnostics=(
                *evidence.diagnostics(stages.trace, stages.blocks),
                *evidence.disagreement(stages.trace, measured, stages.unlimited),
            ),
            trace=evidence.trace_summary(stages.trace, stages.attribution),
            timings_s=clock.seconds,
            convolution_workspaces=stages.convolution_workspaces,
            curve=witness.curve(replayed),
            card=card_parts(stages.trace, stages.workload, holders, verdict),
            largest_blocks=largest_blocks(
                stages.trace, stages.attribution, stages.workload, holders, replayed
            ),
        )
    return Analysis(answer, stages, verdict, holders, options, device, show_packages)


def _holders(stages: Stages, show_packages: bool) -> Holders:
    return holders_of(
        stages.trace, stages.attribution, stages.workload, stages.requests, show_packages=show_packages
    )


def _interval(
    stages: Stages, verdict: Judged, bounds: Bounds, spread_bytes: int, confidence: float
) -> Interval:
    """What the device peak lies between, by what runs estimated in the same way were measured to need."""
    trace, scaling = stages.trace, stages.scaling
    unlimited_bytes = stages.unlimited.peak_reserved.bytes
    least_bytes, most_bytes = left_open(unlimited_bytes, scaling, stages.convolution_workspaces)
    reserved_bytes = verdict.reserved_bytes
    if verdict.missed_bytes:  # what our replay says, and what PyTorch's own allocator says
        least_bytes = min(unlimited_bytes if least_bytes is None else least_bytes, unlimited_bytes)
        most_bytes = max(reserved_bytes, stages.unreplayed.allocator.of(most_bytes or unlimited_bytes))
    elif 0 < stages.unreplayed.allocator.seen_bytes < stages.unreplayed.allocator.instead_of_bytes:
        least_bytes = min(stages.unreplayed.allocator.seen_bytes, least_bytes or reserved_bytes)
    if spread_bytes:
        most_bytes = max(most_bytes or 0, reserved_bytes) + spread_bytes
    way = "recorded"  # on a GPU, whose allocations are replayed as they were
    if phantom_notes(trace):
        way = "phantom"
    elif traced_device(stages.blocks)[0] == CPU:
        way = "cpu" if scaling is None else "fitted"
    between = calibration.interval(
        reserved_bytes,
        way=way,
        kind="convolutional" if evidence.has_convolutions(trace) else "other",
        confidence=confidence,
        context_bytes=verdict.beside_bytes,
        least_bytes=least_bytes,
        most_bytes=most_bytes,
        bounds=bounds,
    )
    return replace(
        between,
        low_bytes=min(between.low_bytes, verdict.need_bytes),
        high_bytes=max(stages.unreplayed.fullest.of(between.high_bytes), verdict.need_bytes),
    )


def _policy_records(stages: Stages, peak_block: int) -> tuple[PolicyRecord, ...]:
    """What each policy changed, also at the instant at which a block of the workload raised the peak."""
    peak_ns: int | None = int(stages.workload.alloc_ns[peak_block])
    if stages.what_if:  # another script's clock: the instant is that of the same block in the script as it is
        rows = np.flatnonzero(stages.corrected.block == stages.workload.block[peak_block])
        recorded = stages.workload.block[peak_block] >= 0 and len(rows) > 0
        peak_ns = int(stages.corrected.alloc_ns[rows[0]]) if recorded else None
    return tuple(
        PolicyRecord(
            name=change.name,
            blocks_changed=change.blocks_changed,
            bytes_changed=change.bytes_changed,
            description=change.description,
            bytes_at_peak=None if peak_ns is None else change.bytes_at(peak_ns),
            package=change.package,
            applied=change.applied,
        )
        for change in stages.changes
    )


def _bounds(requests: Requests, options: AllocatorOptions) -> Bounds:
    least = replay_through("perfect_reuse", requests, options=options)
    most = replay_through("never_reuse", requests, options=options)
    return Bounds(least.peak_reserved.bytes, most.peak_reserved.bytes)


def _device(gpu: str | None, capacity: int | str | None) -> Device | None:
    named = None if gpu is None else find_device(gpu)
    if capacity is None:
        return named
    size_bytes = parse_bytes(capacity) if isinstance(capacity, str) else capacity
    return custom_device(size_bytes, like=named)


def _capability_text(device: Device | None) -> str | None:
    if device is None or device.compute_capability is None:
        return None
    major, minor = device.compute_capability
    return f"{major}.{minor}"
