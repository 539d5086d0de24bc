"""What packing jobs onto shared GPUs by their predicted occupancy and memory is worth: an event-driven
simulation.

All jobs wait from the beginning, in order. A policy decides whether a job may join those on a GPU. Jobs
that share a GPU are slowed down by how much occupancy they really want together; a GPU whose memory runs
over kills the job that came last, which then waits again and must start anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xmem.errors import ConfigError
from xmem.records import dataclass

Policy = Literal["slot", "utilisation", "occupancy", "memory_and_occupancy", "memory_over_time_and_occupancy"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

_ROUNDING = 1e-9
_STEPS = 64  # of a job's memory, over its progress


@dataclass(frozen=True)
class Job:
    """A job as it runs alone.

    Attributes:
        name: For people.
        seconds: How long it takes alone.
        occupancy: Predicted, 0 to 1: what policies see.
        utilisation: Share of the time with a kernel running (NVML), 0 to 1.
        memory_bytes: Predicted memory over equal steps of its progress: what policies see.
        true_occupancy: What slows others down; -1 = as predicted.
        true_memory_bytes: What it really takes, over equal steps; empty = as predicted.
    """

    name: str
    seconds: float
    occupancy: float
    utilisation: float
    memory_bytes: tuple[int, ...]
    true_occupancy: float = -1.0
    true_memory_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check what would make a simulation meaningless.

        Raises:
            ConfigError: It takes no time, has no memory, or a share is not between 0 and 1.
        """
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ConfigError(f"the job {self.name} takes {self.seconds} seconds", "give a time above 0")
        if not self.memory_bytes:
            raise ConfigError(f"the job {self.name} has no memory", "give its peak, or its memory over time")
        for what, share in (("occupancy", self.occupancy), ("utilisation", self.utilisation)):
            if not 0 <= share <= 1:
                raise ConfigError(f"the job {self.name} has {what} {share}", "give a share from 0 to 1")

    @property
    def wanted_occupancy(self) -> float:
        """The occupancy that it really has."""
        return self.occupancy if self.true_occupancy < 0 else self.true_occupancy


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much longer jobs take that share a GPU, by the sum of their occupancies.

    The defaults are what Figure 7 of the DNN-occu paper shows for pairs: 10 to 60% longer, steeply so
    above 100%.

    Attributes:
        least: Added to the time of any job that shares.
        at_full: Added where the sum is 100%.
        per_excess: Added per 100% of the sum above 100%.
        most: Added at most.
    """

    least: float = 0.10
    at_full: float = 0.20
    per_excess: float = 0.80
    most: float = 0.60

    def factor(self, occupancies: Sequence[float]) -> float:
        """Return by what the time of each job is multiplied."""
        if len(occupancies) < 2:
            return 1.0
        total = math.fsum(occupancies)
        added = self.least + (self.at_full - self.least) * min(total, 1.0)
        added += self.per_excess * max(total - 1.0, 0.0)
        # Beyond the pairs of the figure: what does not fit at a time takes turns.
        return max(1.0 + min(added, self.most), total)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mix of jobs.

    Attributes:
        makespan_seconds: From the beginning to the end of the last job.
        utilisation: Mean NVML utilisation of all GPUs over the makespan, 0 to 1.
        occupancy: The same for occupancy, at most 100% at any time.
        memory: Mean share of the memory in use.
        kills: Jobs that ran out of memory and had to start anew.
        mean_slowdown: Mean of how much longer a job took than alone, its lost starts left out.
        mean_wait_seconds: Mean time until a job's last start.
    """

    makespan_seconds: float
    utilisation: float
    occupancy: float
    memory: float
    kills: int
    mean_slowdown: float
    mean_wait_seconds: float


@dataclass
class _Running:
    row: int
    job: Job
    predicted: NDArray[np.int64]
    real: NDArray[np.int64]
    began: float
    order: int
    progress: float = 0.0


@dataclass
class _Gpu:
    running: list[_Running] = field(default_factory=list)


def simulate(
    jobs: Sequence[Job],
    policy: Policy,
    *,
    gpus: int = 4,
    memory_bytes: int,
    slowdown: Slowdown | None = None,
    most_together: int = 4,
    slack: float = 0.1,
) -> Outcome:
    """Run a mix of jobs under a policy.

    Args:
        jobs: In the order in which they wait.
        policy: ``slot``: one job a GPU. ``utilisation``: their NVML utilisations add up to at most 100%.
            ``occupancy``: their predicted occupancies do. ``memory_and_occupancy``: their predicted peaks fit
            the memory as well. ``memory_over_time_and_occupancy``: what they take at each time fits.
        gpus: How many GPUs, all alike.
        memory_bytes: Of each, for jobs.
        slowdown: Of jobs that share.
        most_together: Jobs on a GPU at a time at most.
        slack: By how much of its length a job may be ahead or behind, where memory over time is looked at.

    Raises:
        ConfigError: A job does not fit an empty GPU, or there are no jobs or GPUs.
    """
    if not jobs or gpus < 1:
        raise ConfigError("there is nothing to pack", "give at least one job and one GPU")
    if policy not in POLICIES:
        raise ConfigError(f"unknown policy {policy!r}", f"use one of {', '.join(POLICIES)}")
    for job in jobs:
        if max(job.true_memory_bytes or job.memory_bytes) > memory_bytes:
            raise ConfigError(f"the job {job.name} fits no GPU", "leave it out or take larger GPUs")
    return _Simulation(jobs, policy, gpus, memory_bytes, slowdown or Slowdown(), most_together, slack).run()


class _Simulation:
    def __init__(
        self,
        jobs: Sequence[Job],
        policy: Policy,
        gpus: int,
        memory_bytes: int,
        slowdown: Slowdown,
        most_together: int,
        slack: float,
    ) -> None:
        self._jobs = jobs
        self._policy = policy
        self._gpus = [_Gpu() for _ in range(gpus)]
        self._memory = memory_bytes
        self._slowdown = slowdown
        self._most = most_together
        self._slack = slack
        self._waiting = list(range(len(jobs)))
        self._alone: set[int] = set()  # ran out of memory once: not beside others again
        self._now = 0.0
        self._starts = 0
        self._kills = 0
        self._area = np.zeros(3)
        self._taken = [0.0] * len(jobs)
        self._waits = [0.0] * len(jobs)

    def run(self) -> Outcome:
        while True:
            self._place()
            self._kill()
            if not any(gpu.running for gpu in self._gpus):
                assert not self._waiting, "every job fits an empty GPU"
                break
            self._advance(self._until_next_event())
            self._finish()
        slowdowns = [taken / job.seconds for taken, job in zip(self._taken, self._jobs, strict=True)]
        utilisation, occupancy, memory = self._area / (self._now * len(self._gpus))
        return Outcome(
            makespan_seconds=self._now,
            utilisation=float(utilisation),
            occupancy=float(occupancy),
            memory=float(memory),
            kills=self._kills,
            mean_slowdown=math.fsum(slowdowns) / len(slowdowns),
            mean_wait_seconds=math.fsum(self._waits) / len(self._waits),
        )

    def _place(self) -> None:
        for row in list(self._waiting):
            job = self._jobs[row]
            candidates = [gpu for gpu in self._gpus if self._admits(gpu, row)]
            if not candidates:
                continue
            gpu = min(candidates, key=lambda gpu: (self._load(gpu), self._gpus.index(gpu)))
            predicted, real = _steps(job.memory_bytes), _steps(job.true_memory_bytes or job.memory_bytes)
            gpu.running.append(_Running(row, job, predicted, real, self._now, self._starts))
            self._starts += 1
            self._waiting.remove(row)
            self._waits[row] = self._now

    def _load(self, gpu: _Gpu) -> float:
        return math.fsum(item.job.occupancy for item in gpu.running) + len(gpu.running) * 1e-3

    def _admits(self, gpu: _Gpu, row: int) -> bool:
        if not gpu.running:
            return True
        job = self._jobs[row]
        alone = row in self._alone or any(item.row in self._alone for item in gpu.running)
        if self._policy == "slot" or alone or len(gpu.running) >= self._most:
            return False
        together = [*(item.job for item in gpu.running), job]
        if self._policy == "utilisation":
            return math.fsum(item.utilisation for item in together) <= 1 + _ROUNDING
        if math.fsum(item.occupancy for item in together) > 1 + _ROUNDING:
            return False
        if self._policy == "memory_and_occupancy":
            return sum(max(item.memory_bytes) for item in together) <= self._memory
        if self._policy == "memory_over_time_and_occupancy":
            return self._fits_over_time(gpu, job)
        return True

    def _fits_over_time(self, gpu: _Gpu, job: Job) -> bool:
        """Return whether what all take fits at every time to come, each a little ahead or behind."""
        newcomer = _Running(-1, job, _steps(job.memory_bytes), _steps(job.memory_bytes), self._now, -1)
        together = [*gpu.running, newcomer]
        longest = max(item.job.seconds * (1 - item.progress) for item in together)
        times = np.linspace(0.0, longest, 2 * _STEPS)
        total = np.zeros(len(times), dtype=np.int64)
        for item in together:
            total += _worst_near(item.predicted, item.progress + times / item.job.seconds, self._slack)
        return bool((total <= self._memory).all())

    def _factor(self, gpu: _Gpu) -> float:
        return self._slowdown.factor([item.job.wanted_occupancy for item in gpu.running])

    def _until_next_event(self) -> float:
        """Return the time until a job ends or its memory changes."""
        times = []
        for gpu in self._gpus:
            factor = self._factor(gpu)
            times += [
                (self._next_stop(item) - item.progress) * item.job.seconds * factor for item in gpu.running
            ]
        return min(times)

    def _next_stop(self, item: _Running) -> float:
        """Return the progress at which a job's memory is another one, a waiting job may fit, or it ends."""
        here = min(int(item.progress * _STEPS + _ROUNDING), _STEPS - 1)
        if self._waiting and self._policy == "memory_over_time_and_occupancy":
            return (here + 1) / _STEPS
        others = np.nonzero(item.real[here:] != item.real[here])[0]
        return float(here + others[0]) / _STEPS if len(others) else 1.0

    def _advance(self, seconds: float) -> None:
        for gpu in self._gpus:
            factor = self._factor(gpu)
            utilisation = 1 - math.prod(1 - item.job.utilisation for item in gpu.running)
            occupancy = min(math.fsum(item.job.wanted_occupancy for item in gpu.running), 1.0)
            memory = sum(_at(item.real, item.progress) for item in gpu.running) / self._memory
            self._area += seconds * np.array([utilisation, occupancy, memory])
            for item in gpu.running:
                item.progress += seconds / (item.job.seconds * factor)
        self._now += seconds

    def _finish(self) -> None:
        for gpu in self._gpus:
            for item in gpu.running:
                if item.progress >= 1 - _ROUNDING:
                    self._taken[item.row] = self._now - item.began
            gpu.running = [item for item in gpu.running if item.progress < 1 - _ROUNDING]

    def _kill(self) -> None:
        for gpu in self._gpus:
            while sum(_at(item.real, item.progress) for item in gpu.running) > self._memory:
                last = max(gpu.running, key=lambda item: item.order)
                gpu.running.remove(last)
                self._waiting.insert(0, last.row)
                self._alone.add(last.row)
                self._kills += 1


def _steps(memory: tuple[int, ...]) -> NDArray[np.int64]:
    """Return a job's memory over ``_STEPS`` equal steps, the most of each."""
    columns = np.asarray(memory, dtype=np.int64)
    edges = np.arange(_STEPS + 1) * len(columns) / _STEPS
    return np.array(
        [columns[int(low) : max(math.ceil(high), int(low) + 1)].max() for low, high in pairwise(edges)]
    )


def _at(steps: NDArray[np.int64], progress: float) -> int:
    return int(steps[min(int(progress * _STEPS + _ROUNDING), _STEPS - 1)])


def _worst_near(steps: NDArray[np.int64], progress: NDArray[np.float64], slack: float) -> NDArray[np.int64]:
    """Return the most that a job takes near each progress; 0 well after its end."""
    reach = max(math.ceil(slack * _STEPS), 1)
    padded = np.concatenate([np.zeros(reach, np.int64), steps, np.zeros(reach, np.int64)])
    worst = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(axis=1)
    after = np.concatenate([worst, np.repeat(steps[-1], reach), [0]])
    rows = np.minimum((progress * _STEPS + _ROUNDING).astype(np.int64), len(after) - 1)
    return after[rows]


def compare(
    mixes: Sequence[Sequence[Job]],
    policies: Sequence[Policy] = POLICIES,
    progress: Callable[[int], None] | None = None,
    **settings: int | float | Slowdown,
) -> dict[Policy, list[Outcome]]:
    """Run every mix under every policy; ``settings`` are those of ``simulate``."""
    found: dict[Policy, list[Outcome]] = {policy: [] for policy in policies}
    for number, mix in enumerate(mixes):
        for policy in policies:
            found[policy].append(simulate(mix, policy, **settings))  # type: ignore[arg-type]
        if progress:
            progress(number)
    return found
