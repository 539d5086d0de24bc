"""A run moved to a kind of GPU: corrected for it, changed as its script would be, and put in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from xmem import alloc_conf as allocator_settings
from xmem.blocks import CPU, NEVER
from xmem.cudnn.workspaces import workspaces_for
from xmem.devices import Device
from xmem.job_settings import phantom_notes, torch_version_of
from xmem.observation import Observation
from xmem.orchestration.policy import PolicyChange, apply_policies
from xmem.orchestration.target import RunSettings
from xmem.orchestration.target import Target as PolicyTarget
from xmem.orchestration.workload import Workload
from xmem.simulation import NO_ALTERNATIVES, Alternatives, Requests, make_requests
from xmem.stage_clock import StageClock
from xmem.whatif import Run

_UNKNOWN_COMPUTE_CAPABILITY = (8, 0)


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
    version = torch_version_of(observed.recorded.trace, torch_version)
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
    observed: Observation,
    device: Device | None,
    torch_version: str | None,
    *,
    clock: StageClock | None = None,
) -> Moved:
    """Correct a run for its target and order its requests.

    Raises:
        ConfigError: The version cannot be meant.
    """
    clock = clock or StageClock()
    with clock.stage("orchestrate"):
        corrected, corrections = correct(observed, device, torch_version)
        run = changed(observed, corrected)
    with clock.stage("sequence"):
        requests = requests_of(run, corrected)
    return Moved(observed, corrected, run.workload, corrections, requests)


def correct(
    observed: Observation, device: Device | None, torch_version: str | None
) -> tuple[Workload, list[PolicyChange]]:
    """Move the run to its target: the workload after all policies, and what each correction changed.

    Raises:
        ConfigError: The version cannot be meant.
    """
    target = policy_target(observed, device, torch_version)
    plan = observed.plan
    return apply_policies(plan.corrections, observed.workload, observed.recorded.on(target), off=plan.off)


def changed(observed: Observation, corrected: Workload) -> Run:
    """The run with all changes of the script, in order."""
    run = Run(corrected, observed.recorded)
    for change in observed.what_ifs:
        run = change(run)
    return run


def requests_of(run: Run, corrected: Workload) -> Requests:
    """The requests of a run; ``corrected`` is what it was before the script was changed."""
    workload = run.workload
    emptied_ns = _emptied_ns(corrected, phantom_notes(run.recorded.trace).get("emptied_after", ()))
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


def _emptied_ns(workload: Workload, emptied_after: Sequence[int]) -> NDArray[np.int64]:
    """When the script emptied the cache, by how many requests there had been: clocks are not exact enough."""
    freed = workload.free_ns[workload.free_ns != NEVER]
    times = np.sort(np.concatenate([workload.alloc_ns, freed]))
    before = np.clip(np.array(emptied_after, np.int64) - 1, 0, len(times) - 1)
    return times[before] + 1
