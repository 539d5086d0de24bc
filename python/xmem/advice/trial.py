"""Replay of a changed recorded job: the saving of one remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xmem.devices.gpus import Device
from xmem.estimation.analysis import Analysis
from xmem.estimation.move import requests_of
from xmem.estimation.verdict import Unreplayed, judge
from xmem.records import dataclass
from xmem.run.workload import Workload
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.replay import Requests, replay
from xmem.whatif import ChangedRun, WhatIf, parse_whatif


@dataclass(frozen=True)
class TrialOutcome:
    """Peaks of one replay in bytes, on a device without limit if the job does not fit or none is named."""

    peak_reserved_bytes: int
    peak_allocated_bytes: int
    device_peak_bytes: int
    fits: bool | None


@dataclass(frozen=True)
class Trial:
    """The job, and the device and settings that it is tried on.

    Attributes:
        start: The run as analysed, with the changes of the caller.
        corrected: Its blocks before the script was changed.
        options: Options of the allocator.
        device: The device, None where none was named.
        unreplayed: Memory that the cards held beside what the replay shows.
    """

    start: ChangedRun
    corrected: Workload
    options: AllocatorOptions
    device: Device | None
    unreplayed: Unreplayed

    @classmethod
    def of(cls, analysis: Analysis) -> Trial:
        """Return the trial of an analysed job."""
        stages = analysis.stages
        run = ChangedRun(stages.corrected, stages.recorded, analysis.device)
        for change in stages.what_if:
            run = parse_whatif(change)(run)
        return cls(run, stages.corrected, stages.settings.options, analysis.device, stages.unreplayed)

    def changed(self, changes: Sequence[WhatIf]) -> ChangedRun:
        """Return the run with changes of the script, in order.

        Raises:
            TraceError: The trace does not hold what a change needs to know.
            ConfigError: A change cannot follow those before it.
        """
        run = self.start
        for change in changes:
            run = change(run)
        return run

    def requests(self, run: ChangedRun) -> Requests:
        """Return the requests of a run to the allocator."""
        return requests_of(run, self.corrected)

    def outcome(self, requests: Requests, options: AllocatorOptions | None = None) -> TrialOutcome:
        """Replay requests, with other settings of the allocator if any are given."""
        options = replace(options or self.options, sizes_with_slack=self.options.sizes_with_slack)
        unlimited = replay(requests, options=options)
        verdict = judge(requests, unlimited, options, self.device, self.unreplayed, explain=False)
        return TrialOutcome(
            verdict.reserved_bytes, verdict.replay.peak_allocated.bytes, verdict.need_bytes, verdict.fits
        )
