"""An estimate with every step behind it, the input of reports."""

from __future__ import annotations

from xmem.devices.gpus import Device
from xmem.estimation.estimate import ConvolutionWorkspaces, Estimate, Scaling
from xmem.estimation.holders import Holders, holders_of
from xmem.estimation.question import Question
from xmem.estimation.verdict import Judged, Unreplayed
from xmem.estimation.warm_start import Warm
from xmem.orchestration.policy import PolicyChange
from xmem.records import dataclass
from xmem.run.job_settings import JobSettings, job_settings
from xmem.run.recorded import Recorded
from xmem.run.workload import Workload
from xmem.simulation.replay import Replay, Requests
from xmem.trace.attribution import Attribution
from xmem.trace.blocks import BlockTable
from xmem.trace.trace import Trace


@dataclass(frozen=True)
class Stages:
    """Every intermediate result of an estimate, for inspection.

    Attributes:
        question: The question to answer.
        settings: Settings that the job runs with.
        recorded: The trace as read, its blocks, and their allocators.
        workload: The device's blocks after all policies and changes of the script.
        corrected: The same before the script was changed.
        changes: Changes by each policy.
        requests: Requests in the order in which the allocator sees them.
        unlimited: The replay on a device without limit: what the job would take if it could.
        unreplayed: Memory that the cards held beside that.
        assumptions: Assumptions in words.
        timings_s: Seconds by stage.
        scaling: Relation of the run to those of a fitted model; None for a run as it was recorded.
        what_if: Changes of the script, as texts.
        convolution_workspaces: Source of the convolution workspaces for a run on the CPU.
        open_recurrent: Bytes by which recurrent layers may take less and more than estimated.
        warm: The allocator that a run on a real GPU began with; None where the trace does not show it.
    """

    question: Question
    settings: JobSettings
    recorded: Recorded
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
    open_recurrent: tuple[int, int] = (0, 0)
    warm: Warm | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the question is about other settings or another script than were recorded."""
        return bool(self.what_if) or self.settings.options != job_settings(self.trace).options

    @property
    def trace(self) -> Trace:
        """The trace as read."""
        return self.recorded.trace

    @property
    def blocks(self) -> BlockTable:
        """Allocations paired with frees."""
        return self.recorded.blocks

    @property
    def attribution(self) -> Attribution:
        """Origin of each block, and its time in the training step."""
        return self.recorded.attribution

    def holders(self, show_packages: bool = False) -> Holders:
        """Return the holder of each block, by the lines of installed packages or by the user's own."""
        return holders_of(
            self.trace, self.attribution, self.workload, self.requests, show_packages=show_packages
        )


@dataclass(frozen=True)
class Analysis:
    """An answer and the data behind it, the input of reports.

    Attributes:
        estimate: The answer.
        stages: Every intermediate result.
        verdict: Memory that the card must have, and the replay that the evidence is about.
        holders: Holder of each block of the workload.
        show_packages: Whether source lines are the innermost outside of torch, including those of installed
            packages, instead of the user's own.
    """

    estimate: Estimate
    stages: Stages
    verdict: Judged
    holders: Holders
    show_packages: bool

    @property
    def device(self) -> Device | None:
        """The GPU in question; None where none was named."""
        return self.stages.question.device

    @property
    def replay(self) -> Replay:
        """The replay that the evidence is about."""
        return self.verdict.replay

    def holders_with(self, *, show_packages: bool) -> Holders:
        """Return the holder of each block, by the lines of installed packages or by the user's own."""
        return self.holders if show_packages == self.show_packages else self.stages.holders(show_packages)
