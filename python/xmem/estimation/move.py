"""Move of a run to a kind of GPU: corrections for it, changes of the script, and the order of requests."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from xmem.cudnn.workspaces import workspaces_for
from xmem.errors import TraceError
from xmem.estimation.observation import Observation
from xmem.estimation.question import Question
from xmem.estimation.stage_clock import StageClock
from xmem.orchestration.policy import PolicyChange, apply_policies
from xmem.records import dataclass
from xmem.run.target import RunSettings
from xmem.run.target import Target as PolicyTarget
from xmem.run.workload import NOT_RESTORED, Workload
from xmem.simulation.replay import NO_ALTERNATIVES, Alternatives, Calls, Requests, make_requests
from xmem.trace.blocks import CPU, NEVER
from xmem.trace.trace import Trace
from xmem.whatif import ChangedRun

_UNKNOWN_COMPUTE_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Moved:
    """A run moved to a kind of GPU and put in order, shared by all allocator settings and sizes of it.

    Attributes:
        observed: The run.
        target: The kind of GPU and PyTorch release.
        corrected: Its blocks after all policies.
        workload: The same after all changes of the script.
        corrections: Changes by each correction for the target.
        requests: Requests in the order in which the allocator sees them.
    """

    observed: Observation
    target: PolicyTarget
    corrected: Workload
    workload: Workload
    corrections: list[PolicyChange]
    requests: Requests


def policy_target(observed: Observation, question: Question) -> PolicyTarget:
    """Return the kind of GPU and release to correct for; runs moved to equal targets are equal."""
    device, release = question.device, question.settings_of(observed.recorded.trace).release
    capability = (device.compute_capability if device else None) or _UNKNOWN_COMPUTE_CAPABILITY
    # GPUs of one kind share everything that does not need it
    described = device if observed.plan.by_gpu or observed.what_ifs else None
    return PolicyTarget(
        compute_capability=capability,
        torch_version=release,
        settings=RunSettings.of(observed.recorded.notes.settings),
        gpu=described.slug if described else "",
        device=described,
        convolutions=workspaces_for(device, release) if observed.device_type == CPU else None,
    )


def move(observed: Observation, question: Question, *, clock: StageClock | None = None) -> Moved:
    """Correct a run for the GPU and the release in question, and order its requests.

    Raises:
        TraceError: Nothing of the run is left on the GPU, or a change of the script cannot be applied.
    """
    clock = clock or StageClock()
    with clock.stage("orchestrate"):
        target = policy_target(observed, question)
        corrected, corrections = correct(observed, target)
        run = changed(observed, corrected, target)
    if len(run.workload) == 0:
        raise TraceError(
            "nothing of what the trace shows takes memory of a GPU; record at least one whole iteration, or "
            "use: xmem-fast capture -o trace.json.gz -- python train.py",
            observed.recorded.trace.path,
        )
    with clock.stage("sequence"):
        requests = requests_of(run, corrected)
    return Moved(observed, target, corrected, run.workload, corrections, requests)


def correct(observed: Observation, target: PolicyTarget) -> tuple[Workload, list[PolicyChange]]:
    """Return the workload moved to its target by all policies, and the changes by each correction."""
    plan = observed.plan
    return apply_policies(plan.corrections, observed.workload, observed.recorded.on(target), off=plan.off)


def changed(observed: Observation, corrected: Workload, target: PolicyTarget) -> ChangedRun:
    """Return the run with all changes of the script, in order."""
    run = ChangedRun(corrected, observed.recorded, target.device)
    for change in observed.what_ifs:
        run = change(run)
    return run


def requests_of(run: ChangedRun, corrected: Workload) -> Requests:
    """Return the requests of a run; ``corrected`` is the run before the script was changed."""
    workload = run.workload
    history = run.recorded.history
    calls = _emptied_caches(corrected, run.recorded.trace) if history is None else history.calls
    return make_requests(
        workload.alloc_ns,
        workload.free_ns,
        workload.size_bytes,
        workload.stream,
        calls=replace(calls, time_ns=run.clock(calls.time_ns)),
        alternatives=_alternatives(workload),
        waits=workload.waits,
        mempool=workload.mempool if workload.mempool.any() else (),
        restores=_restores(workload),
    )


def _restores(workload: Workload) -> NDArray[np.int32]:
    """Convert restores to rows of the workload; a block whose original has left the run is ordinary."""
    restores = workload.restores
    if not (restores != NOT_RESTORED).any():
        return restores[:0]
    known = workload.block >= 0
    row_of = np.full(int(max(workload.block.max(), restores.max())) + 1, NOT_RESTORED, np.int32)
    row_of[workload.block[known]] = np.flatnonzero(known)
    return np.where(restores >= 0, row_of[np.maximum(restores, 0)], restores).astype(np.int32)


def _alternatives(workload: Workload) -> Alternatives:
    if not workload.choices:
        return NO_ALTERNATIVES
    ends = np.cumsum([len(sizes) for sizes in workload.choices])
    sizes = np.fromiter(chain.from_iterable(workload.choices), np.int64)
    return Alternatives(workload.choice, np.concatenate([[0], ends]).astype(np.int64), sizes)


def _emptied_caches(workload: Workload, trace: Trace) -> Calls:
    """Return when the script emptied the cache, by the number of requests, for captures before 2026-12."""
    phantom = trace.notes.phantom
    emptied_after = np.array([] if phantom is None else phantom.emptied_after, np.int64)
    freed = workload.free_ns[workload.free_ns != NEVER]
    times = np.sort(np.concatenate([workload.alloc_ns, freed]))
    return Calls.emptied(times[np.clip(emptied_after - 1, 0, len(times) - 1)] + 1)
