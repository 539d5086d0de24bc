"""Memory that a run needs, without the reasons, for searches and sweeps."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from xmem.devices.gpus import Device
from xmem.estimation.estimate import Scaling
from xmem.estimation.move import Moved, move
from xmem.estimation.observation import Observation
from xmem.estimation.open_sizes import scaling_of
from xmem.estimation.question import AS_RECORDED, Question
from xmem.estimation.stage_clock import StageClock
from xmem.estimation.verdict import NOTHING, Unreplayed, judge, unreplayed_of, with_nccl
from xmem.records import dataclass
from xmem.run.job_settings import JobSettings, job_settings
from xmem.run.recorded import Recorded
from xmem.simulation.replay import Replay
from xmem.simulation.replay import replay as replay_requests


@dataclass(frozen=True)
class Need:
    """Memory that a job needs, without the reasons, for searches and sweeps.

    Attributes:
        peak_reserved_bytes: Most memory that the allocator held: in the run on the device where it fits, in
            the run on a device without limit where it does not or none is named.
        peak_allocated_bytes: Most memory in blocks in use, likewise.
        device_peak_bytes: Memory that the card must have: context, peak reserved and all memory outside of
            PyTorch's allocator, on the fullest GPU of the job.
        fits: Whether the replay on the device completes; None when no device is named.
        retries: Number of times that all caches were flushed before memory was found, in the same run.
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
    """A run as it would be with unlimited memory, shared by all GPUs of one kind.

    Attributes:
        moved: The run.
        settings: Settings of the job.
        replay: Replay on a device without limit.
        scaling: What the fit of a model leaves open.
        unreplayed: Memory that the run held on the card beside that.
    """

    moved: Moved
    settings: JobSettings
    replay: Replay
    scaling: Scaling | None
    unreplayed: Unreplayed

    def need(self, device: Device | None) -> Need:
        """Return the need of the job on a GPU of the kind that it was moved to, or on one without limit."""
        verdict = judge(
            self.moved.requests, self.replay, self.settings.options, device, self.unreplayed, explain=False
        )
        return Need(
            peak_reserved_bytes=verdict.reserved_bytes,
            peak_allocated_bytes=verdict.replay.peak_allocated.bytes,
            device_peak_bytes=verdict.need_bytes,
            fits=verdict.fits,
            retries=verdict.replay.statistics["num_alloc_retries"],
            scaling=self.scaling,
        )


def replay_without_limit(
    moved: Moved, question: Question, *, clock: StageClock | None = None
) -> WithoutLimit:
    """Replay a run that was moved to its target on a device without limit.

    Raises:
        ConfigError: The release of the job does not accept the settings.
    """
    trace = moved.observed.recorded.trace
    settings = question.settings_of(trace)
    options = settings.options
    with (clock or StageClock()).stage("replay"):
        unlimited = replay_requests(moved.requests, options=options)
        scaling = scaling_of(moved, unlimited, options)
        unreplayed = _unreplayed(moved.observed, unlimited, same_run=options == job_settings(trace).options)
        unreplayed = with_nccl(unreplayed, trace.notes.nccl, question.device)
    return WithoutLimit(moved, settings, unlimited, scaling, unreplayed)


def _unreplayed(observed: Observation, replayed: Replay, *, same_run: bool) -> Unreplayed:
    """Return the memory that the replay does not show; changed runs take that of the recorded run."""
    if observed.scaled is not None:
        return observed.scaled.unreplayed
    if same_run and not observed.what_ifs:
        return unreplayed_of(observed.recorded, replayed)
    return unreplayed_as_recorded(observed)


# Searches and sweeps ask about the same run thousands of times.
_as_recorded: WeakKeyDictionary[Recorded, dict[frozenset[str], Unreplayed]] = WeakKeyDictionary()


def unreplayed_as_recorded(observed: Observation) -> Unreplayed:
    """Return the memory that the replay of a run as recorded, with its own settings and without limit, does
    not show; computed once for a trace."""
    trace = observed.recorded.trace
    allocator = observed.recorded.allocator
    if allocator is None or not allocator.ranks:
        return NOTHING
    known = _as_recorded.setdefault(observed.recorded, {})
    if observed.plan.off not in known:
        requests = move(replace(observed, what_ifs=()), AS_RECORDED).requests
        replayed = replay_requests(requests, options=job_settings(trace).options)
        known[observed.plan.off] = unreplayed_of(observed.recorded, replayed)
    return known[observed.plan.off]


def memory_needed(observed: Observation, question: Question = AS_RECORDED) -> Need:
    """Answer without evidence, in milliseconds.

    Raises:
        ConfigError: The release of the job does not accept the settings.
    """
    return replay_without_limit(move(observed, question), question).need(question.device)
