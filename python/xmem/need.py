"""How much memory a run needs, without the reasons: what searches and sweeps ask for."""

from __future__ import annotations

from dataclasses import dataclass

from xmem import evidence
from xmem.alloc_conf import AllocatorOptions
from xmem.devices import Device
from xmem.estimate_result import Scaling
from xmem.job_settings import allocator_options
from xmem.move import Moved, move
from xmem.observation import Observation
from xmem.open_sizes import scaling_of
from xmem.simulation import Replay, Requests
from xmem.simulation import replay as replay_requests
from xmem.stage_clock import StageClock


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
        limited = replay_on(self.moved.requests, self.replay, self.options, device)
        fits = (limited is None or limited.oom is None) and self._others_fit(device)
        ran = self.replay if limited is None or limited.oom is not None else limited
        return self._need(ran, device.context_bytes, fits)

    def _others_fit(self, device: Device) -> bool:
        if self.scaling is not None or self.moved.observed.what_ifs:
            return True
        measured = evidence.measured(self.moved.observed.recorded.trace, self.replay, self.options)
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
    moved: Moved, alloc_conf: str | None, torch_version: str | None, *, clock: StageClock | None = None
) -> WithoutLimit:
    """Replay a run that was moved to its target on a device without limit.

    Raises:
        ConfigError: The settings or the version cannot be meant.
    """
    trace = moved.observed.recorded.trace
    options = allocator_options(trace, alloc_conf, torch_version)
    with (clock or StageClock()).stage("replay"):
        unlimited = replay_requests(moved.requests, options=options)
        scaling = scaling_of(moved, unlimited, options)
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


def replay_on(
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
