"""The ways to an estimate of a measured run, and the captures that each one needs.

phantom     the job itself on a phantom GPU of the run's size: what PyTorch's own allocator reserved
fake        a capture of the job itself on the CPU with nothing computed, moved to the run's GPU
cpu         a capture of the job itself on the CPU, moved to the run's GPU
fitted      captures of the job at two small batches on the CPU, a model of them at the run's batch, moved
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from accuracy.cache import Cache, Key, Record, digest
from accuracy.runs import Job, Run
from xmem.capture import PhantomMachine, capture, find_torch
from xmem.errors import CaptureError, ConfigError
from xmem.estimation.move import move
from xmem.estimation.need import WithoutLimit, replay_without_limit
from xmem.estimation.observation import Observation, observe
from xmem.estimation.question import AS_RECORDED, Question
from xmem.phantom.installation import library_folder
from xmem.scaling import Sample, ScalingModel, fit
from xmem.trace.attribution import Category

Way = Literal["phantom", "fake", "cpu", "fitted"]
WAYS: tuple[Way, ...] = ("phantom", "fake", "cpu", "fitted")
CpuMode = Literal["real", "fake"]
_PREFIXES: dict[CpuMode, str] = {"real": "cpu", "fake": "fake"}
SMALL_BATCHES = (2, 3)
SCRIPT = Path(__file__).parent / "train.py"
_WORKLOADS = Path(__file__).parents[1] / "workloads"


class NotCapturedError(Exception):
    """A way has no answer; the text says why."""


@dataclass(frozen=True)
class Answer:
    """What a way says of a run; sizes in bytes.

    Attributes:
        reserved_bytes: The most that the allocator holds, on a GPU without limit where the job does not fit.
        moved_bytes: What it holds when the first batch comes: the model, and state made with the optimizer.
        out_of_memory: Whether the job fails on the run's GPU.
        low_bytes: Least that the fit of a model leaves possible, None where there is no such doubt.
        high_bytes: Most of it.
        note: What should be known of it.
    """

    reserved_bytes: int
    moved_bytes: int
    out_of_memory: bool
    low_bytes: int | None = None
    high_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Laboratory:
    """Where jobs run and their captures are kept.

    Attributes:
        python: Of the environment to run in.
        cache: The captures.
        environment: Variables of the jobs.
        cudnn: A ``libcudnn.so.9`` that plans convolutions in place of the environment's.
    """

    python: str
    cache: Cache
    environment: Mapping[str, str]
    cudnn: Path | None = None
    _models: dict[Job, ScalingModel] = field(default_factory=dict, repr=False)

    @cached_property
    def _torch(self) -> str:
        build = find_torch([self.python], self.environment)
        if build is None:
            raise ConfigError(
                f"--python {self.python} has no torch", "name a Python whose environment has torch"
            )
        return build.version

    @cached_property
    def _sources(self) -> str:
        import xmem.capture

        child = Path(xmem.capture.__file__).parent / "child"
        return digest(SCRIPT, _WORKLOADS, child)

    @cached_property
    def _phantom_sources(self) -> str:
        libraries = sorted(library_folder().glob("*xmem_phantom*"))
        return digest(self._sources, *libraries, str(self.cudnn and digest(self.cudnn)))

    def cpu_key(self, job: Job, mode: CpuMode = "real") -> Key:
        """Name of a capture on the CPU."""
        return Key(f"{_PREFIXES[mode]}-{job}-torch{self._torch}", self._sources)

    def phantom_key(self, run: Run) -> Key:
        """Name of a capture on a phantom GPU."""
        subject = f"phantom-{run.job}-{run.device.slug}-{run.measured.total_bytes}-torch{self._torch}"
        return Key(subject, self._phantom_sources)

    def capture_on_cpu(self, job: Job, iterations: int, timeout_s: float, mode: CpuMode = "real") -> Record:
        """Run the job on the CPU, and note how that went."""
        key = self.cpu_key(job, mode)
        self.cache.folder.mkdir(parents=True, exist_ok=True)
        try:
            done = capture(
                job.command(self.python, SCRIPT),
                self.cache.trace(key),
                iterations=iterations,
                env=self.environment,
                timeout_s=timeout_s,
                mode=mode,
            )
            record = Record("captured", done.wall_s)
        except CaptureError as error:
            took_too_long = "did not finish" in str(error)
            record = Record("skipped" if took_too_long else "failed", timeout_s, note=_last_line(error))
        self.cache.put(key, record)
        return record

    def capture_on_phantom(self, run: Run, iterations: int) -> Record:
        """Run the job on a phantom GPU as large as the run's; where that fails, again on one without end."""
        key = self.phantom_key(run)
        self.cache.folder.mkdir(parents=True, exist_ok=True)
        machine = PhantomMachine(device=run.device, strict_capacity=True, cudnn_library=self.cudnn)
        try:
            try:
                record = self._on_phantom(run.job, key, machine, iterations)
            except CaptureError as error:
                if "OutOfMemoryError" not in str(error):
                    raise
                record = self._on_phantom(run.job, key, replace(machine, strict_capacity=False), iterations)
                record = replace(record, outcome="out_of_memory")
        except CaptureError as error:
            record = Record("failed", 0.0, note=_last_line(error))
        self.cache.put(key, record)
        return record

    def _on_phantom(self, job: Job, key: Key, machine: PhantomMachine, iterations: int) -> Record:
        done = capture(
            job.command(self.python, SCRIPT),
            self.cache.trace(key),
            iterations=iterations,
            env=self.environment,
            mode="phantom",
            machine=machine,
        )
        peak = int(done.metadata["phantom"]["ranks"][0]["devices"][0]["peak_reserved_bytes"])
        return Record("captured", done.wall_s, peak)

    def ask(self, run: Run, way: Way) -> Answer:
        """What a way says of a run, from captures that are there.

        Raises:
            NotCapturedError: They are not.
            TraceError: One cannot be read.
        """
        if way == "phantom":
            key, record = self._found(self.phantom_key(run))
            stale = "" if key == self.phantom_key(run) else "captured by other sources"
            moved_bytes = 0
            if run.first_record_is_late:
                moved = move(observe(self.cache.trace(key)), Question(run.device))
                moved_bytes = _reserved_at_first_batch(replay_without_limit(moved, AS_RECORDED))
            return Answer(
                record.peak_reserved_bytes,
                moved_bytes,
                record.outcome == "out_of_memory",
                note=stale,
            )
        job = run.job
        return _moved(self.observe_for(way, job), run)

    def observe_for(self, way: Way, job: Job) -> Observation:
        """What a way other than ``phantom`` sees of a job.

        Raises:
            NotCapturedError: A capture is missing.
            TraceError: One cannot be read.
            ConfigError: Those of a model have too little in common.
        """
        if way == "fitted":
            return self.model(job).at(batch=job.batch)
        return self.observe(job, "fake" if way == "fake" else "real")

    def observe(self, job: Job, mode: CpuMode = "real") -> Observation:
        """What the capture of a job on the CPU says.

        Raises:
            NotCapturedError: There is none.
            TraceError: It cannot be read.
        """
        return self.observe_capture(self.cpu_key(job, mode))

    def observe_capture(self, key: Key) -> Observation:
        """What the trace of a capture says.

        Raises:
            NotCapturedError: There is none.
            TraceError: It cannot be read.
        """
        return observe(self.cache.trace(self._found(key)[0]))

    def model(self, job: Job) -> ScalingModel:
        """The model of a job at any batch, from the captures at small ones.

        Raises:
            NotCapturedError: One of them is missing.
            TraceError: One cannot be read.
            ConfigError: They have too little in common.
        """
        small = job.at(SMALL_BATCHES[0])
        if small not in self._models:
            samples = [Sample({"batch": batch}, self.observe(job.at(batch))) for batch in SMALL_BATCHES]
            self._models[small] = fit(samples)
        return self._models[small]

    def _found(self, key: Key) -> tuple[Key, Record]:
        found = self.cache.find(key)
        if found is None:
            raise NotCapturedError(f"not captured: {key}")
        if found[1].outcome in ("failed", "skipped"):
            raise NotCapturedError(f"{found[1].outcome}: {found[1].note}")
        return found


def _moved(observed: Observation, run: Run) -> Answer:
    without_limit = replay_without_limit(move(observed, Question(run.device)), AS_RECORDED)
    need, moved_bytes = without_limit.need(run.device), _reserved_at_first_batch(without_limit)
    scaling = need.scaling
    notes = [f"caches flushed {need.retries} times"] if need.retries else []
    if scaling is None or not scaling.blocks_uncertain:
        return Answer(need.peak_reserved_bytes, moved_bytes, not need.fits, note="; ".join(notes))
    notes.append(f"{scaling.blocks_uncertain} blocks that no polynomial fits")
    return Answer(
        need.peak_reserved_bytes,
        moved_bytes,
        not need.fits,
        scaling.peak_reserved_least_bytes,
        scaling.peak_reserved_most_bytes,
        "; ".join(notes),
    )


def _reserved_at_first_batch(run: WithoutLimit) -> int:
    """What the allocator holds before the first input is on the device, 0 where none is known."""
    categories = run.moved.workload.category[run.moved.requests.block]
    inputs = np.flatnonzero(categories == Category.INPUT)
    return int(run.replay.timeline.reserved_bytes[inputs[0] - 1]) if len(inputs) and inputs[0] else 0


def _last_line(error: CaptureError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "no message"
