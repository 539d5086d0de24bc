"""The pipeline from a trace to the answer: one page, one call per stage.

observe: read -> pair -> attribute -> choose the device -> facts of the run (observation.py)
run_stages: corrections for the target -> requests (move.py) -> replay (need.py)
conclude: verdict -> evidence -> interval (interval.py)

``estimate`` returns the answer; ``analyze`` also what reports show beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from xmem.devices.gpus import Device
from xmem.estimation import evidence
from xmem.estimation.analysis import Analysis, Stages
from xmem.estimation.assumptions import assumptions, batches_differ, rules_of_release
from xmem.estimation.busyness import occupancy_record
from xmem.estimation.calibration import DEFAULT_CONFIDENCE
from xmem.estimation.card import card_parts
from xmem.estimation.estimate import (
    Bounds,
    Estimate,
    PolicyRecord,
    TargetRecord,
    Verdict,
)
from xmem.estimation.interval import interval_of, not_calibrated
from xmem.estimation.large_blocks import largest_blocks
from xmem.estimation.move import move
from xmem.estimation.need import replay_without_limit
from xmem.estimation.observation import Observation, observe
from xmem.estimation.open_recurrent import open_of_recurrent_layers
from xmem.estimation.open_sizes import convolution_workspaces
from xmem.estimation.question import AS_RECORDED, Question, ask
from xmem.estimation.stage_clock import StageClock
from xmem.estimation.verdict import Judged, judge
from xmem.estimation.warm_start import warm_start_of
from xmem.files.sources import TraceSource
from xmem.simulation.bounding import replay_through
from xmem.trace.trace import Progress, Trace
from xmem.whatif import WhatIf, parse_whatif


def estimate(
    trace: Observation | Trace | TraceSource,
    *,
    gpu: str | None = None,
    capacity: int | str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    what_if: Sequence[WhatIf | str] = (),
    confidence: float = DEFAULT_CONFIDENCE,
    without_policies: Collection[str] = (),
    show_packages: bool = False,
    progress: Progress | None = None,
) -> Estimate:
    """Estimate how much GPU memory a training job will need, and whether it fits.

    Args:
        trace: A trace, an input of ``read_trace``, or a result of ``observe``.
        gpu: Name of a GPU (``xmem-fast gpus``).
        capacity: Memory of the GPU in bytes or as text (``"11.5GiB"``); wins over that of ``gpu``.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the job; by default that of a run on the phantom GPU, else
            none.
        torch_version: PyTorch version of the job; by default the one that wrote the trace, else 2.13.
        what_if: Changes of the script, such as ``"optimizer=adamw:fused"``, applied in this order.
        confidence: Confidence of each bound of the interval, at least 0.5 and less than 1.
        without_policies: Names of policies to switch off (``xmem-fast policies``).
        show_packages: Name the innermost source line outside of torch, including that of an installed
            package, instead of the user's own.
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
    confidence: float = DEFAULT_CONFIDENCE,
    without_policies: Collection[str] = (),
    show_packages: bool = False,
    progress: Progress | None = None,
) -> Analysis:
    """Estimate, and keep the data behind the answer; arguments and errors are those of ``estimate``."""
    question = ask(
        gpu=gpu,
        capacity=capacity,
        alloc_conf=alloc_conf,
        torch_version=torch_version,
        confidence=confidence,
    )
    changes = [parse_whatif(change) if isinstance(change, str) else change for change in what_if]
    if isinstance(trace, Observation):
        observed = trace.without_policies(*without_policies)
    else:
        observed = observe(trace, without_policies=without_policies, progress=progress)
    return answer(observed.what_if(*changes), question, show_packages=show_packages)


def answer(observed: Observation, question: Question, *, show_packages: bool = False) -> Analysis:
    """Return the answer to a question about a run, with the data behind it.

    Raises:
        TraceError: The trace does not hold what a change of the script needs to know.
        ConfigError: The release of the job does not accept the settings.
    """
    return conclude(run_stages(observed, question), show_packages=show_packages)


def run_stages(
    trace: Observation | Trace | TraceSource,
    question: Question = AS_RECORDED,
    *,
    progress: Progress | None = None,
) -> Stages:
    """Run the pipeline up to the replay on a device without limit.

    Raises:
        TraceError: The trace cannot be used.
        ConfigError: The release of the job does not accept the settings.
    """
    observed = trace if isinstance(trace, Observation) else observe(trace, progress=progress)
    clock = StageClock(dict(observed.timings_s))
    moved = move(observed, question, clock=clock)
    without_limit = replay_without_limit(moved, question, clock=clock)
    settings = without_limit.settings
    workspaces = convolution_workspaces(moved, without_limit.replay, settings.options)
    stages = Stages(
        question=question,
        settings=settings,
        recorded=observed.recorded,
        workload=moved.workload,
        corrected=moved.corrected,
        changes=[*observed.changes, *moved.corrections],
        requests=moved.requests,
        unlimited=without_limit.replay,
        unreplayed=without_limit.unreplayed,
        assumptions=(
            *assumptions(observed.recorded, question.device),
            *rules_of_release(settings, moved.requests, without_limit),
            *([] if workspaces is None else [workspaces.source]),
        ),
        convolution_workspaces=workspaces,
        open_recurrent=open_of_recurrent_layers(
            observed.recorded,
            moved.workload,
            moved.requests,
            without_limit.replay,
            moved.target.compute_capability,
        ),
        timings_s=clock.seconds,
        scaling=without_limit.scaling,
        what_if=tuple(change.text for change in observed.what_ifs),
        warm=warm_start_of(observed.recorded, moved.corrected),
    )
    if stages.warm is None or not stages.is_changed:
        return stages
    return replace(stages, assumptions=(*stages.assumptions, stages.warm.assumption))


def conclude(stages: Stages, *, show_packages: bool = False) -> Analysis:
    """Turn the stages into the answer; with a device, replay on it too."""
    clock = StageClock(dict(stages.timings_s))
    options = stages.settings.options
    with clock.stage("replay"):
        verdict = judge(stages.requests, stages.unlimited, options, stages.question.device, stages.unreplayed)
        bounds = _bounds(stages)
    with clock.stage("evidence"):
        holders = stages.holders(show_packages)
        witness = evidence.Witness(stages.workload, stages.requests, holders)
        found = _estimate(stages, verdict, bounds, witness)
    return Analysis(replace(found, timings_s=clock.seconds), stages, verdict, holders, show_packages)


def _estimate(stages: Stages, verdict: Judged, bounds: Bounds, witness: evidence.Witness) -> Estimate:
    """Return the verdict with its reasons, without the time that they take."""
    trace, device, replayed = stages.trace, stages.question.device, verdict.replay
    measured = None
    if stages.scaling is None and not stages.what_if:  # the run as it was recorded
        measured = evidence.measured(stages.recorded, stages.unlimited, stages.settings.options)
    spread_bytes = evidence.spread_of_iterations(trace, stages.workload, stages.requests, stages.unlimited)
    return Estimate(
        peak_reserved_bytes=verdict.reserved_bytes,
        peak_allocated_bytes=replayed.peak_allocated.bytes,
        peak_requested_bytes=replayed.peak_requested.bytes,
        context_bytes=verdict.context_bytes,
        device_peak_bytes=verdict.need_bytes,
        interval=interval_of(stages, verdict, bounds, spread_bytes),
        verdict=_verdict(device, verdict),
        peak=witness.peak(replayed),
        breakdown=witness.breakdown(replayed),
        target=_target(stages, verdict),
        policies=_policy_records(stages, witness.peak_block(replayed)),
        assumptions=(*stages.assumptions, *batches_differ(spread_bytes), *not_calibrated(stages)),
        simulation=witness.simulation(replayed, verdict.failed, bounds),
        measured=measured,
        scaling=stages.scaling,
        what_if=stages.what_if,
        diagnostics=(
            *evidence.diagnostics(trace, stages.blocks),
            *evidence.disagreement(stages.recorded, measured, stages.unlimited),
        ),
        trace=evidence.trace_summary(trace, stages.attribution),
        timings_s={},
        convolution_workspaces=stages.convolution_workspaces,
        curve=witness.curve(replayed),
        card=card_parts(trace, stages.workload, witness.holders, verdict),
        largest_blocks=largest_blocks(trace, stages.attribution, stages.workload, witness.holders, replayed),
        occupancy=None if stages.scaling or stages.what_if else occupancy_record(trace),
    )


def _verdict(device: Device | None, verdict: Judged) -> Verdict | None:
    if device is None:
        return None
    return Verdict(
        gpu=device.name,
        capacity_bytes=device.total_memory_bytes,
        fits=verdict.fits is True,
        margin_bytes=device.total_memory_bytes - verdict.need_bytes,
    )


def _target(stages: Stages, verdict: Judged) -> TargetRecord:
    device = stages.question.device
    return TargetRecord(
        gpu=device.slug if device and device.slug else None,
        capacity_bytes=-1 if device is None else device.total_memory_bytes,
        compute_capability=_capability_text(device),
        context_bytes=verdict.context_bytes,
        torch_version=stages.settings.torch_version,
        alloc_conf=stages.settings.alloc_conf,
    )


def _policy_records(stages: Stages, peak_block: int) -> tuple[PolicyRecord, ...]:
    """Return the changes by each policy, also at the instant when a block of the workload raised the peak."""
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


def _bounds(stages: Stages) -> Bounds:
    least, most = (
        replay_through(
            name, stages.requests, options=stages.settings.options, keep_timeline=False
        ).peak_reserved.bytes
        for name in ("perfect_reuse", "never_reuse")
    )
    return Bounds(least, most)


def _capability_text(device: Device | None) -> str | None:
    if device is None or device.compute_capability is None:
        return None
    major, minor = device.compute_capability
    return f"{major}.{minor}"
