"""Compares the simulator with a recorded GPU run, and finds out which release's rules it followed.

A snapshot does not name the PyTorch that wrote it. Where no version is given, the rules of every release are
tried, each set of them once, and the first that agrees with all devices is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from xmem.errors import ConfigError, TraceError
from xmem.records import dataclass
from xmem.simulation.alloc_conf import RULE_RELEASES, AllocatorOptions, TieBreak
from xmem.simulation.alloc_conf import parse as parse_alloc_conf
from xmem.snapshot.snapshot import (
    Event,
    RecordedAction,
    RecordedDevice,
    RecordingDifference,
    Snapshot,
    replay_recording,
    state_before,
)

__all__ = ["Comparison", "DeviceComparison", "Rules", "compare"]

_EVENTS_AROUND = 3


@dataclass(frozen=True)
class Rules:
    """The rules that the replay followed.

    Attributes:
        torch_version: Version as given, or else the last release with these rules.
        given: Whether the version was given, not found by trying.
        tie_break: Rule that chooses among several free blocks of one size.
    """

    torch_version: str
    given: bool
    tie_break: TieBreak


@dataclass(frozen=True)
class DeviceComparison:
    """The extent to which simulator and recording agree on one device.

    Attributes:
        device: Index of the device.
        events: Number of events that were recorded.
        agreed_events: Number of events before the first difference.
        start_reserved_bytes: Reserved bytes before the first event, worked out from the end.
        peak_reserved_bytes: Peak over the events that agreed, including the start.
        final_reserved_bytes: Reserved bytes after the last event that agreed.
        difference: None when every event agreed.
        around: Recorded events around the difference, by index; empty when there is none.
    """

    device: int
    events: int
    agreed_events: int
    start_reserved_bytes: int
    peak_reserved_bytes: int
    final_reserved_bytes: int
    difference: RecordingDifference | None
    around: Mapping[int, Event]


@dataclass(frozen=True)
class Comparison:
    """The extent to which simulator and recording agree on all devices that recorded events.

    Attributes:
        path: The snapshot.
        alloc_conf: Settings of the replay, None where neither the caller nor the file named any.
        rules: The rules that agree, or else those that agree longest.
        rejected: Other rules that were tried before and did not agree.
        devices: Comparisons by device index.
    """

    path: str
    alloc_conf: str | None
    rules: Rules
    rejected: tuple[Rules, ...]
    devices: tuple[DeviceComparison, ...]

    @property
    def agrees(self) -> bool:
        """Whether every event of every device agrees."""
        return all(device.difference is None for device in self.devices)


def compare(
    snapshot: Snapshot, *, alloc_conf: str | None = None, torch_version: str | None = None
) -> Comparison:
    """Replay each device of a snapshot and report where simulator and recording diverge.

    Args:
        snapshot: Snapshot from ``read_snapshot``.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the run; by default the value in the file.
        torch_version: Release that made the recording; by default the rules of all are tried.

    Raises:
        ConfigError: ``alloc_conf`` or ``torch_version`` is invalid.
        TraceError: The snapshot holds no events, or events that cannot be replayed.
    """
    recorded = [device for device in snapshot.devices.values() if _has_events(device)]
    if not recorded:
        raise TraceError(
            "the snapshot holds no recorded events, so there is nothing to compare; call "
            "torch.cuda.memory._record_memory_history() before the part to record, and take it again",
            snapshot.path,
        )
    tried: list[tuple[Rules, tuple[DeviceComparison, ...]]] = []
    for rules, options in _candidates(snapshot, alloc_conf, torch_version):
        tried.append((rules, tuple(_compare_device(snapshot, device, options) for device in recorded)))
        if all(device.difference is None for device in tried[-1][1]):
            break
    best = max(tried, key=lambda attempt: _agreement(attempt[1]))
    return Comparison(
        path=snapshot.path,
        alloc_conf=snapshot.alloc_conf if alloc_conf is None else alloc_conf,
        rules=best[0],
        rejected=tuple(rules for rules, _ in tried if rules != best[0]),
        devices=best[1],
    )


def _has_events(device: RecordedDevice) -> bool:
    """Return whether anything was recorded; taking a snapshot itself leaves an event unrelated to memory."""
    return bool((device.trace.action != RecordedAction.OTHER).any())


def _agreement(devices: tuple[DeviceComparison, ...]) -> tuple[int, int]:
    whole = sum(device.difference is None for device in devices)
    return whole, sum(device.agreed_events for device in devices)


def _candidates(
    snapshot: Snapshot, alloc_conf: str | None, torch_version: str | None
) -> Iterator[tuple[Rules, AllocatorOptions]]:
    """Return the rules to try, oldest release first, without repeats of the same settings."""

    def options_of(version: str) -> AllocatorOptions:
        if alloc_conf is not None:
            return parse_alloc_conf(alloc_conf, version)
        try:
            return snapshot.allocator_options(version)
        except ConfigError as error:
            if torch_version is not None:
                raise
            raise TraceError(
                f"the recorded run used allocator settings that cannot be replayed: {error}", snapshot.path
            ) from error

    if torch_version is not None:
        options = options_of(torch_version)
        yield Rules(torch_version, True, options.tie_break), options
        return
    seen: list[AllocatorOptions] = []
    refusal: ConfigError | TraceError | None = None
    for version in RULE_RELEASES:
        try:
            options = options_of(version)
        except (ConfigError, TraceError) as error:  # a key that this release does not have, or that none has
            refusal = error
            continue
        # Recordings name the pool of each event, so the rules do not decide which scope a request goes by.
        asked = replace(options, newest_scope_first=True, every_scope_captures=False)
        if asked not in seen:
            seen.append(asked)
            yield Rules(version, False, options.tie_break), options
    if not seen and refusal is not None:
        raise refusal


def _compare_device(
    snapshot: Snapshot, recorded: RecordedDevice, options: AllocatorOptions
) -> DeviceComparison:
    try:
        start = state_before(recorded, options)
        replayed = replay_recording(recorded, options, start=start)
    except TraceError as error:
        message = f"device {recorded.device}: {error.message}"
        raise TraceError(message, snapshot.path, event_index=error.event_index) from error
    start_bytes = int(start.segment_bytes.sum())
    reserved = replayed.reserved_bytes
    agreed = len(reserved) if replayed.difference is None else replayed.difference.event
    return DeviceComparison(
        device=recorded.device,
        events=len(recorded.trace),
        agreed_events=agreed,
        start_reserved_bytes=start_bytes,
        peak_reserved_bytes=max(start_bytes, int(reserved[:agreed].max(initial=0))),
        final_reserved_bytes=int(reserved[agreed - 1]) if agreed else start_bytes,
        difference=replayed.difference,
        around={} if replayed.difference is None else _around(recorded, replayed.difference.event),
    )


def _around(recorded: RecordedDevice, event: int) -> dict[int, Event]:
    trace = recorded.trace
    rows = range(max(event - _EVENTS_AROUND, 0), min(event + _EVENTS_AROUND + 1, len(trace)))
    return {
        row: Event(
            RecordedAction(trace.action[row]),
            int(trace.address[row]),
            int(trace.size_bytes[row]),
            int(trace.stream[row]),
        )
        for row in rows
    }
