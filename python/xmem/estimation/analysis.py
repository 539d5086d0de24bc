"""An estimate with every step behind it: what reports are made from."""

from __future__ import annotations

from dataclasses import dataclass

from xmem.devices.gpus import Device
from xmem.estimation.estimate import ConvolutionWorkspaces, Estimate, Scaling
from xmem.estimation.holders import Holders, holders_of
from xmem.estimation.question import Question
from xmem.estimation.verdict import Judged, Unreplayed
from xmem.orchestration.policy import PolicyChange
from xmem.run.job_settings import JobSettings
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
        question: What is asked.
        settings: What the job runs with.
        recorded: The trace as read, its blocks, and who allocated them.
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

    @property
    def trace(self) -> Trace:
        """As read."""
        return self.recorded.trace

    @property
    def blocks(self) -> BlockTable:
        """Allocations paired with frees."""
        return self.recorded.blocks

    @property
    def attribution(self) -> Attribution:
        """Who allocated each block, and when in the training step."""
        return self.recorded.attribution

    def holders(self, show_packages: bool = False) -> Holders:
        """Who holds each block, by the lines of installed packages or by the user's own."""
        return holders_of(
            self.trace, self.attribution, self.workload, self.requests, show_packages=show_packages
        )


@dataclass(frozen=True)
class Analysis:
    """An answer and all that it rests on: what reports are made from.

    Attributes:
        estimate: The answer.
        stages: Every intermediate result.
        verdict: What the card must have, and the replay that the evidence is about.
        holders: Who holds each block of the workload.
        show_packages: Whether source lines are the innermost outside of torch, those of installed packages
            too, in place of the user's own.
    """

    estimate: Estimate
    stages: Stages
    verdict: Judged
    holders: Holders
    show_packages: bool

    @property
    def device(self) -> Device | None:
        """The GPU that was asked about; None where none was named."""
        return self.stages.question.device

    @property
    def replay(self) -> Replay:
        """What the evidence is about."""
        return self.verdict.replay

    def holders_with(self, *, show_packages: bool) -> Holders:
        """Who holds each block, by the lines of installed packages or by the user's own."""
        return self.holders if show_packages == self.show_packages else self.stages.holders(show_packages)
