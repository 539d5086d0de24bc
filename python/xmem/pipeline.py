"""From a trace to the answer: one page, a call a stage.

observe: read -> pair -> attribute -> choose the device -> facts of the run
run_stages: corrections for the target -> requests -> replay
conclude: verdict and evidence
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem import alloc_conf as allocator_settings
from xmem import calibration, evidence
from xmem.alloc_conf import AllocatorOptions
from xmem.allocators import replay_through
from xmem.attribution import Attribution, Phase, attribute
from xmem.blocks import CPU, NEVER, BlockTable, pair_blocks
from xmem.cudnn.workspaces import workspaces_for
from xmem.devices import Device, custom_device, find_device
from xmem.errors import ConfigError, TraceError
from xmem.estimate_result import (
    Bounds,
    ConvolutionWorkspaces,
    Estimate,
    Interval,
    Measured,
    PolicyRecord,
    RankPeak,
    Scaling,
    Target,
    Verdict,
)
from xmem.orchestration.convolutions import plan_convolutions
from xmem.orchestration.plan import Plan, plan_for, require_policies
from xmem.orchestration.policy import PolicyChange, Recorded, apply_policies
from xmem.orchestration.target import RunSettings
from xmem.orchestration.target import Target as PolicyTarget
from xmem.orchestration.workload import Workload, workload_of
from xmem.simulation import NO_ALTERNATIVES, Alternatives, Replay, Requests, make_requests
from xmem.simulation import replay as replay_requests
from xmem.sources import TraceSource
from xmem.trace import Progress, Trace, read_trace
from xmem.units import parse_bytes
from xmem.whatif import Run, WhatIf, parse_whatif

_UNKNOWN_COMPUTE_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Scaled:
    """What an observation at a point of a fitted model owes to the fit; columns have one row a block of the
    trace.

    Attributes:
        at: The point.
        fitted_from: Points of the runs.
        unverified: bool, sizes that the runs determined and none checked.
        uncertain: bool, sizes that no polynomial gives.
        least_bytes: int64, the least that an uncertain block could take; the workload holds the most.
        extra_bytes: Of blocks that only other runs held.
    """

    at: Mapping[str, int]
    fitted_from: tuple[Mapping[str, int], ...]
    unverified: NDArray[np.bool_]
    uncertain: NDArray[np.bool_]
    least_bytes: NDArray[np.int64]
    extra_bytes: int


@dataclass(frozen=True)
class Observation:
    """What a trace says that the run held on its device: the half of the pipeline that no target changes.

    Attributes:
        recorded: The trace as read, its blocks, and who allocated them.
        workload: The blocks of the device that the trace saw most of, with the facts of the run applied.
        changes: What each fact changed.
        plan: The policies for this kind of trace.
        device_type: Of the traced device, 0 for the CPU.
        timings_s: Seconds by stage.
        scaled: None for a run as it was recorded.
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
        """The run as it would be if its script were changed, after the changes made so far.

        Raises:
            ConfigError: No such change.
        """
        parsed = [parse_whatif(change) if isinstance(change, str) else change for change in changes]
        return replace(self, what_ifs=(*self.what_ifs, *parsed))

    def without_policies(self, *names: str) -> Observation:
        """The run as it would be estimated with these policies switched off, beside those that are.

        Raises:
            ConfigError: No such policy, or a model was fitted from what one of them made of the runs.
        """
        if self.plan.off.issuperset(names):
            return self
        plan = plan_for(gpu_trace=self.device_type != CPU, without=self.plan.off.union(names))
        changed_facts = [policy.name for policy in plan.facts if policy.name in plan.off - self.plan.off]
        if not changed_facts:
            return replace(self, plan=plan)
        if self.scaled is not None:
            raise ConfigError(
                f"a fitted model without {changed_facts[0]}",
                "estimates of the traces that it was fitted from",
            )
        workload, changes = _facts(self.recorded, plan)
        return replace(self, plan=plan, workload=workload, changes=changes)


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
    assumptions: tuple[str, ...]
    timings_s: dict[str, float]
    scaling: Scaling | None
    what_if: tuple[str, ...]
    convolution_workspaces: ConvolutionWorkspaces | None = None


@dataclass
class _Clock:
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin


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
        progress: Called now and then while the trace is read.

    Raises:
        TraceError: The trace cannot be used.
        ConfigError: The GPU, the capacity, the settings, the version, a change, the confidence or a policy
            cannot be meant.
    """
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
        stages, device=device, alloc_conf=alloc_conf, torch_version=torch_version, confidence=confidence
    )


def observe(
    trace: Trace | TraceSource,
    *,
    without_policies: Collection[str] = (),
    progress: Progress | None = None,
) -> Observation:
    """Run the pipeline as far as it does not depend on a target.

    Args:
        trace: A trace, or what ``read_trace`` reads.
        without_policies: Names of policies to switch off.
        progress: Called now and then with the bytes of the trace read so far.

    Raises:
        TraceError: The trace cannot be used.
        ConfigError: No such policy, or one that an installed package brings is broken.
    """
    clock = _Clock()
    if without_policies:  # before the long part
        require_policies(without_policies)
    with clock.stage("read"):
        read = trace if isinstance(trace, Trace) else read_trace(trace, progress=progress)
    with clock.stage("pair"):
        blocks = pair_blocks(read)
    with clock.stage("attribute"):
        attribution = attribute(read, blocks)
    _require_training(read, attribution)
    with clock.stage("orchestrate"):
        device_type, _ = _traced_device(blocks)
        recorded = Recorded(read, blocks, attribution)
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
    """The blocks of the traced device with the facts of the run applied, and what each fact changed."""
    workload = workload_of(recorded.blocks, recorded.attribution, *_traced_device(recorded.blocks))
    return apply_policies(plan.facts, workload, recorded, off=plan.off)


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
        ConfigError: The settings or the version cannot be meant.
    """
    if alloc_conf:  # before the long part
        allocator_settings.parse(alloc_conf, torch_version or allocator_settings.DEFAULT_TORCH_VERSION)
    observed = trace if isinstance(trace, Observation) else observe(trace, progress=progress)
    clock = _Clock(dict(observed.timings_s))
    moved = move(observed, device, torch_version, clock=clock)
    without_limit = replay_without_limit(moved, alloc_conf, torch_version, clock=clock)
    workspaces = _convolution_workspaces(moved, device, torch_version, without_limit)
    return Stages(
        trace=observed.recorded.trace,
        blocks=observed.recorded.blocks,
        attribution=observed.recorded.attribution,
        workload=moved.workload,
        corrected=moved.corrected,
        changes=[*observed.changes, *moved.corrections],
        requests=moved.requests,
        unlimited=without_limit.replay,
        assumptions=(
            *evidence.assumptions(observed.recorded, observed.device_type, device),
            *([] if workspaces is None else [workspaces.source]),
        ),
        convolution_workspaces=workspaces,
        timings_s=clock.seconds,
        scaling=without_limit.scaling,
        what_if=tuple(change.text for change in observed.what_ifs),
    )


@dataclass(frozen=True)
class Moved:
    """A run moved to a kind of GPU and put in order: what all allocator settings and sizes of it share.

    Attributes:
        observed: The run.
        corrected: Its blocks after all policies.
        workload: The same after all changes of the script.
        corrections: What each correction for the target changed.
        requests: The order in which the allocator sees them.
    """

    observed: Observation
    corrected: Workload
    workload: Workload
    corrections: list[PolicyChange]
    requests: Requests


def policy_target(observed: Observation, device: Device | None, torch_version: str | None) -> PolicyTarget:
    """The kind of GPU and release that corrections are made for; runs moved to equal targets are equal.

    Raises:
        ConfigError: The version cannot be meant.
    """
    version = _torch_version(observed.recorded.trace, torch_version)
    capability = (device.compute_capability if device else None) or _UNKNOWN_COMPUTE_CAPABILITY
    described = device if observed.plan.by_gpu else None  # GPUs of one kind share what does not need it
    release = allocator_settings.release_of(version)
    return PolicyTarget(
        compute_capability=capability,
        torch_version=release,
        settings=RunSettings.from_metadata(observed.recorded.metadata),
        gpu=described.slug if described else "",
        device=described,
        convolutions=workspaces_for(device, release) if observed.device_type == CPU else None,
    )


def move(
    observed: Observation, device: Device | None, torch_version: str | None, *, clock: _Clock | None = None
) -> Moved:
    """Correct a run for its target and order its requests.

    Raises:
        ConfigError: The version cannot be meant.
    """
    clock = clock or _Clock()
    with clock.stage("orchestrate"):
        corrected, corrections = correct(observed, device, torch_version)
        run = _changed(observed, corrected)
    with clock.stage("sequence"):
        requests = _requests(run, corrected)
    return Moved(observed, corrected, run.workload, corrections, requests)


def correct(
    observed: Observation, device: Device | None, torch_version: str | None
) -> tuple[Workload, list[PolicyChange]]:
    """Move the run to its target: the workload after all policies, and what each correction changed."""
    target = policy_target(observed, device, torch_version)
    plan = observed.plan
    return apply_policies(plan.corrections, observed.workload, observed.recorded.on(target), off=plan.off)


def _changed(observed: Observation, corrected: Workload) -> Run:
    """The run with all changes of the script, in order."""
    run = Run(corrected, observed.recorded)
    for change in observed.what_ifs:
        run = change(run)
    return run


def _requests(run: Run, corrected: Workload) -> Requests:
    """The requests of a run; ``corrected`` is what it was before the script was changed."""
    workload = run.workload
    emptied_ns = _emptied_ns(corrected, _phantom(run.recorded.trace).get("emptied_after", ()))
    return make_requests(
        workload.alloc_ns,
        workload.free_ns,
        workload.size_bytes,
        workload.stream,
        empty_cache_ns=run.clock(emptied_ns),
        alternatives=_alternatives(workload),
    )


def _alternatives(workload: Workload) -> Alternatives:
    if not workload.choices:
        return NO_ALTERNATIVES
    ends = np.cumsum([len(sizes) for sizes in workload.choices])
    sizes = np.fromiter(chain.from_iterable(workload.choices), np.int64)
    return Alternatives(workload.choice, np.concatenate([[0], ends]).astype(np.int64), sizes)


def _convolution_workspaces(
    moved: Moved, device: Device | None, torch_version: str | None, without_limit: WithoutLimit
) -> ConvolutionWorkspaces | None:
    """Who said what convolutions take, and what of the peak depends on it."""
    target = policy_target(moved.observed, device, torch_version)
    planned = plan_convolutions(moved.corrected, moved.observed.recorded.on(target))
    if planned is None:
        return None
    _, _, answer = planned
    own = moved.workload.choice >= 0
    peak = without_limit.replay.peak_reserved.bytes
    least = most = peak
    if not answer.exact and own.any():
        least, most = (
            replay_requests(
                replace(moved.requests, alternatives=_only(moved.requests.alternatives, which)),
                options=without_limit.options,
            ).peak_reserved.bytes
            for which in (np.minimum, np.maximum)
        )
    return ConvolutionWorkspaces(
        source=answer.source,
        cudnn_version=answer.version,
        exact=answer.exact,
        blocks=int(own.sum()),
        largest_bytes=int(moved.workload.size_bytes[own].max(initial=0)),
        peak_reserved_least_bytes=min(least, peak),
        peak_reserved_most_bytes=max(most, peak),
    )


def _only(alternatives: Alternatives, which: np.ufunc) -> Alternatives:
    """Each list with one size, its smallest or its largest."""
    sizes = which.reduceat(alternatives.size_bytes, alternatives.begin[:-1])
    return Alternatives(alternatives.list, np.arange(len(sizes) + 1), sizes)


def _scaling(moved: Moved, most: Replay, options: AllocatorOptions) -> Scaling | None:
    """What the fit leaves open, among the blocks that are left after all policies and changes."""
    scaled, corrected, workload = moved.observed.scaled, moved.corrected, moved.workload
    if scaled is None:
        return None
    recorded = workload.block >= 0
    uncertain = recorded & scaled.uncertain[workload.block]
    least_bytes = most.peak_reserved.bytes
    if uncertain.any():
        unsure = (corrected.block >= 0) & scaled.uncertain[corrected.block]
        sizes = np.where(unsure, scaled.least_bytes[corrected.block], corrected.size_bytes)
        smaller = corrected.with_columns(size_bytes=sizes)
        least = replay_requests(_requests(_changed(moved.observed, smaller), smaller), options=options)
        least_bytes = min(least_bytes, least.peak_reserved.bytes)
    return Scaling(
        at=scaled.at,
        fitted_from=scaled.fitted_from,
        blocks=len(workload),
        blocks_unverified=int((recorded & scaled.unverified[workload.block]).sum()),
        blocks_uncertain=int(uncertain.sum()),
        peak_reserved_least_bytes=least_bytes,
        peak_reserved_most_bytes=most.peak_reserved.bytes + scaled.extra_bytes,
    )


@dataclass(frozen=True)
class Need:
    """How much memory a job needs, without the reasons: what searches and sweeps ask for.

    Attributes:
        peak_reserved_bytes: The most that the allocator held: of the run on the device where it fits, of the
            run on a device without limit where it does not or none is named.
        peak_allocated_bytes: The most that was in blocks in use, likewise.
        device_peak_bytes: Context plus peak reserved.
        fits: Whether the replay on the device ends; None when no device is named.
        retries: Times that all caches were flushed before memory was found, in the same run.
        scaling: What the fit of a model leaves open.
    """

    peak_reserved_bytes: int
    peak_allocated_bytes: int
    device_peak_bytes: int
    fits: bool | None
    retries: int
    scaling: Scaling | None


@dataclass(frozen=True)
class WithoutLimit:
    """A run as it would be if memory had no end: what all GPUs of one kind share.

    Attributes:
        moved: The run.
        options: Of the allocator.
        replay: On a device without limit.
        scaling: What the fit of a model leaves open.
    """

    moved: Moved
    options: AllocatorOptions
    replay: Replay
    scaling: Scaling | None

    def need(self, device: Device | None) -> Need:
        """What the job needs on a GPU of the kind that it was moved to, or on one without limit."""
        if device is None:
            return self._need(self.replay, 0, None)
        if self.replay.peak_requested.bytes > device.usable_bytes:  # no cache can help
            return self._need(self.replay, device.context_bytes, False)
        limited = _on_device(self.moved.requests, self.replay, self.options, device)
        fits = (limited is None or limited.oom is None) and self._others_fit(device)
        ran = self.replay if limited is None or limited.oom is not None else limited
        return self._need(ran, device.context_bytes, fits)

    def _others_fit(self, device: Device) -> bool:
        if self.scaling is not None or self.moved.observed.what_ifs:
            return True
        measured = _measured(self.moved.observed.recorded.trace, self.replay, self.options)
        return measured is None or measured.others_fit(device.usable_bytes)

    def _need(self, ran: Replay, context_bytes: int, fits: bool | None) -> Need:
        return Need(
            peak_reserved_bytes=ran.peak_reserved.bytes,
            peak_allocated_bytes=ran.peak_allocated.bytes,
            device_peak_bytes=context_bytes + ran.peak_reserved.bytes,
            fits=fits,
            retries=ran.statistics["num_alloc_retries"],
            scaling=self.scaling,
        )


def replay_without_limit(
    moved: Moved, alloc_conf: str | None, torch_version: str | None, *, clock: _Clock | None = None
) -> WithoutLimit:
    """Replay a run that was moved to its target on a device without limit.

    Raises:
        ConfigError: The settings or the version cannot be meant.
    """
    trace = moved.observed.recorded.trace
    options = _options(trace, alloc_conf, torch_version)
    with (clock or _Clock()).stage("replay"):
        unlimited = replay_requests(moved.requests, options=options)
        scaling = _scaling(moved, unlimited, options)
    return WithoutLimit(moved, options, unlimited, scaling)


def memory_needed(
    observed: Observation,
    *,
    device: Device | None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
) -> Need:
    """Answer without evidence, in milliseconds.

    Raises:
        ConfigError: The settings or the version cannot be meant.
    """
    return replay_without_limit(move(observed, device, torch_version), alloc_conf, torch_version).need(device)


def _on_device(
    requests: Requests, unlimited: Replay, options: AllocatorOptions, device: Device | None
) -> Replay | None:
    """The replay on a device that the job without limit is too large for, None where it is not.

    Less memory changes the run: caches are given back and requests retried before it fails.
    """
    if device is None or unlimited.peak_reserved.bytes <= device.usable_bytes:
        return None
    return replay_requests(
        requests,
        options=options,
        capacity_bytes=device.total_memory_bytes,
        other_bytes=device.context_bytes,
    )


def conclude(
    stages: Stages,
    *,
    device: Device | None,
    alloc_conf: str | None,
    torch_version: str | None,
    confidence: float = calibration.DEFAULT_CONFIDENCE,
) -> Estimate:
    """Turn the stages into the answer; with a device, replay on it too."""
    clock = _Clock(dict(stages.timings_s))
    version = _torch_version(stages.trace, torch_version)
    context_bytes = 0 if device is None else device.context_bytes
    with clock.stage("replay"):
        options = _options(stages.trace, alloc_conf, torch_version)
        limited = _on_device(stages.requests, stages.unlimited, options, device)
    failed = limited if limited is not None and limited.oom is not None else None
    replayed = stages.unlimited if limited is None or failed is not None else limited
    with clock.stage("replay"):
        bounds = _bounds(stages.requests, options)
    as_recorded = stages.scaling is None and not stages.what_if
    measured = _measured(stages.trace, stages.unlimited, options) if as_recorded else None
    alike = measured is None or device is None or measured.others_fit(device.usable_bytes)
    with clock.stage("evidence"):
        device_peak = context_bytes + replayed.peak_reserved.bytes
        witness = evidence.Witness(stages.trace, stages.attribution, stages.workload, stages.requests)
        return Estimate(
            peak_reserved_bytes=replayed.peak_reserved.bytes,
            peak_allocated_bytes=replayed.peak_allocated.bytes,
            peak_requested_bytes=replayed.peak_requested.bytes,
            context_bytes=context_bytes,
            device_peak_bytes=device_peak,
            interval=_interval(stages, replayed.peak_reserved.bytes, context_bytes, bounds, confidence),
            verdict=None
            if device is None
            else Verdict(
                gpu=device.name,
                capacity_bytes=device.total_memory_bytes,
                fits=failed is None and alike,
                margin_bytes=device.total_memory_bytes - device_peak,
            ),
            peak=witness.peak(replayed),
            breakdown=witness.breakdown(replayed),
            target=Target(
                gpu=device.slug if device and device.slug else None,
                capacity_bytes=-1 if device is None else device.total_memory_bytes,
                compute_capability=_capability_text(device),
                context_bytes=context_bytes,
                torch_version=version,
                alloc_conf=_alloc_conf(stages.trace, alloc_conf),
            ),
            policies=_policy_records(stages, witness.peak_block(replayed)),
            assumptions=stages.assumptions,
            simulation=witness.simulation(replayed, failed, bounds),
            measured=measured,
            scaling=stages.scaling,
            what_if=stages.what_if,
            diagnostics=evidence.diagnostics(stages.trace, stages.blocks),
            trace=evidence.trace_summary(stages.trace, stages.attribution),
            timings_s=clock.seconds,
            convolution_workspaces=stages.convolution_workspaces,
        )


def _interval(
    stages: Stages, reserved_bytes: int, context_bytes: int, bounds: Bounds, confidence: float
) -> Interval:
    """What the device peak lies between, by what runs estimated in the same way were measured to need."""
    trace, scaling = stages.trace, stages.scaling
    least_bytes, most_bytes = _left_open(stages)
    way = "recorded"  # on a GPU, whose allocations are replayed as they were
    if _phantom(trace):
        way = "phantom"
    elif _traced_device(stages.blocks)[0] == CPU:
        way = "cpu" if scaling is None else "fitted"
    return calibration.interval(
        reserved_bytes,
        way=way,
        kind="convolutional" if evidence.has_convolutions(trace) else "other",
        confidence=confidence,
        context_bytes=context_bytes,
        least_bytes=least_bytes,
        most_bytes=most_bytes,
        bounds=bounds,
    )


def _left_open(stages: Stages) -> tuple[int | None, int | None]:
    """The least and most peak with sizes that the estimate itself does not know; None where it knows all.

    They are those that a fit leaves open and the plans of a cuDNN that is not the job's. Either is known with
    the other as estimated, so both at once move the peak by the sum.
    """
    scaling, planned = stages.scaling, stages.convolution_workspaces
    if scaling is None and (planned is None or planned.exact):
        return None, None
    estimated = least = most = stages.unlimited.peak_reserved.bytes
    if scaling is not None:
        least, most = scaling.peak_reserved_least_bytes, scaling.peak_reserved_most_bytes
    if planned is not None and not planned.exact:
        least -= estimated - planned.peak_reserved_least_bytes
        most += planned.peak_reserved_most_bytes - estimated
    return max(least, 0), most


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


def _require_training(trace: Trace, attribution: Attribution) -> None:
    if len(trace.memory) == 0:
        raise TraceError(
            "the trace holds no [memory] events; record it with profile_memory=True, or with: "
            "xmem-fast capture -o trace.json.gz -- python train.py",
            trace.path,
        )
    trained = attribution.optimizer_steps > 0 or bool((attribution.phase == Phase.OPTIMIZER_STEP).any())
    if not trained and not (trace.metadata or {}).get("iterations"):
        raise TraceError(
            "the training loop was not seen: the trace holds no optimizer step; profile at least one whole "
            "iteration, or use: xmem-fast capture -o trace.json.gz -- python train.py",
            trace.path,
        )


def _traced_device(blocks: BlockTable) -> tuple[int, int]:
    """The GPU that the trace saw most bytes on; the CPU where it saw none."""
    on_gpu = np.flatnonzero(blocks.device_type != CPU)
    if len(on_gpu) == 0:
        return CPU, int(blocks.device_index[0])
    keys = np.stack([blocks.device_type[on_gpu].astype(np.int64), blocks.device_index[on_gpu]])
    devices, which = np.unique(keys, axis=1, return_inverse=True)
    bytes_on = np.bincount(which.ravel(), weights=blocks.size_bytes[on_gpu])
    busiest = devices[:, int(np.argmax(bytes_on))]
    return int(busiest[0]), int(busiest[1])


def _torch_version(trace: Trace, given: str | None) -> str:
    if given is not None:
        return given
    recorded = (trace.metadata or {}).get("versions", {}).get("torch")
    return str(recorded).partition("+")[0] if recorded else allocator_settings.DEFAULT_TORCH_VERSION


def _phantom(trace: Trace) -> dict[str, Any]:
    """What the capture noted of a run on the phantom GPU, empty for other traces."""
    found: dict[str, Any] = (trace.metadata or {}).get("phantom", {})
    return found


def _emptied_ns(workload: Workload, emptied_after: Sequence[int]) -> NDArray[np.int64]:
    """When the script emptied the cache, by how many requests there had been: clocks are not exact enough."""
    freed = workload.free_ns[workload.free_ns != NEVER]
    times = np.sort(np.concatenate([workload.alloc_ns, freed]))
    before = np.clip(np.array(emptied_after, np.int64) - 1, 0, len(times) - 1)
    return times[before] + 1


def _alloc_conf(trace: Trace, given: str | None) -> str:
    return str(_phantom(trace).get("alloc_conf", "")) if given is None else given


def _options(trace: Trace, alloc_conf: str | None, torch_version: str | None) -> AllocatorOptions:
    return allocator_settings.parse(_alloc_conf(trace, alloc_conf), _torch_version(trace, torch_version))


def _measured(trace: Trace, replayed: Replay, options: AllocatorOptions) -> Measured | None:
    """The allocator's own figures of a run on the phantom GPU, and whether the replay reached the same."""
    ranks = tuple(
        RankPeak(
            rank=rank["rank"],
            device=row["device"],
            peak_reserved_bytes=row["peak_reserved_bytes"],
            peak_allocated_bytes=row["peak_allocated_bytes"],
        )
        for rank in _phantom(trace).get("ranks", ())
        for row in rank["devices"]
    )
    if not ranks:
        return None
    own = max(
        (peak for peak in ranks if peak.rank == ranks[0].rank), key=lambda peak: peak.peak_allocated_bytes
    )
    same_rules = options == _options(trace, None, None)
    return Measured(
        peak_reserved_bytes=own.peak_reserved_bytes,
        peak_allocated_bytes=own.peak_allocated_bytes,
        replay_agrees=(
            (replayed.peak_reserved.bytes, replayed.peak_allocated.bytes)
            == (own.peak_reserved_bytes, own.peak_allocated_bytes)
            if same_rules
            else None
        ),
        ranks=ranks,
    )


def _capability_text(device: Device | None) -> str | None:
    if device is None or device.compute_capability is None:
        return None
    major, minor = device.compute_capability
    return f"{major}.{minor}"
