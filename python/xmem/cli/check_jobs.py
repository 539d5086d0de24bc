"""Estimate and judge the jobs of ``check``, each on its GPUs, and store their baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from xmem.cli import job as job_input
from xmem.cli import options, output
from xmem.cli.capturing import CaptureSettings, capture_noting
from xmem.cli.files_of_commands import require_other_file
from xmem.errors import ConfigError, XmemError
from xmem.estimation.estimate_file import is_estimate_file, read_estimate
from xmem.files.scratch import scratch_folder
from xmem.gate.baseline import Baseline, read_baseline, write_baseline
from xmem.gate.judge import CheckOutcome, failed_outcome, judge
from xmem.gate.spec import CheckedJob, CommandToCapture, limits_of
from xmem.records import dataclass

if TYPE_CHECKING:
    from xmem.estimation.estimate import Estimate
    from xmem.estimation.observation import Observation
    from xmem.estimation.question import Question


@dataclass(frozen=True)
class Check:
    """One job on one GPU, or on none.

    Attributes:
        job: The job to check.
        gpu: Name as given.
        baseline_file: File that holds its baseline, None when there is none.
        baseline: Contents of that file, None when it is to be written.
    """

    job: CheckedJob
    gpu: str | None
    baseline_file: Path | None
    baseline: Baseline | None

    @property
    def question(self) -> Question:
        """The question to answer for the job.

        Raises:
            ConfigError: A name or a setting is invalid.
        """
        asked = self.job.asked
        return options.question(
            self.gpu, None, asked.alloc_conf, asked.torch_version, confidence=asked.confidence
        )


def checks_of(jobs: Sequence[CheckedJob], *, update: bool) -> list[list[Check]]:
    """Return the checks of each job; errors are raised here, before a capture that may take minutes.

    Raises:
        ConfigError: A job has no limit, or a setting is invalid.
        TraceError: A baseline cannot be read.
    """
    found = []
    for job in jobs:
        limits_of(budget=None, metric=job.asked.limits.metric, max_growth=None, upper=job.asked.limits.upper)
        if update and job.asked.baseline is None:
            raise ConfigError(f"{job.name} has no baseline for --update-baseline", "pass --baseline with it")
        held = job.asked.limits.budget_bytes is not None or job.asked.gpus or job.asked.baseline is not None
        if not held and not _is_estimate(job.source):
            raise ConfigError(
                f"{job.name} has no limit to check against", "pass --budget, --gpu or --baseline"
            )
        checks = []
        for gpu in job.asked.gpus or (None,):
            file = _baseline_file(job, gpu)
            baseline = None if file is None or update else read_baseline(file)
            checks.append(Check(job, gpu, file, baseline))
            checks[-1].question  # noqa: B018 - checks the names
        found.append(checks)
    files = Counter(entry.baseline_file for checks in found for entry in checks if entry.baseline_file)
    if files and files.most_common(1)[0][1] > 1:
        shared = files.most_common(1)[0][0]
        raise ConfigError(
            f"several checks share the baseline {shared}", "name a folder, which gets one file for each check"
        )
    return found


def require_sources_kept(checks: Sequence[Check], output_file: Path | None, *, updates: bool) -> None:
    """Check that nothing that is written is a file that a job is read from.

    Args:
        checks: The checks, whose jobs may come from a file or a pattern.
        output_file: File for the answer, None for none.
        updates: Whether the baselines are written.

    Raises:
        ConfigError: The answer or a baseline would overwrite a trace, an estimate, a model or, for the
            answer, a baseline.
    """
    sources = [Path(entry.job.source) for entry in checks if isinstance(entry.job.source, str)]
    baselines = [entry.baseline_file for entry in checks if entry.baseline_file is not None]
    for source in sources:
        for baseline in baselines if updates else ():
            require_other_file("--baseline", baseline, source)
    if output_file is not None:
        for read in (*sources, *baselines):
            require_other_file("-o", output_file, read)


def _baseline_file(job: CheckedJob, gpu: str | None) -> Path | None:
    place = job.asked.baseline
    if place is None or (place.suffix == ".json" and not place.is_dir()):
        return place
    name = job.name.replace("/", "_")
    if gpu is not None and len(job.asked.gpus) > 1:
        from xmem.devices.gpus import find_device

        name += f"-{find_device(gpu).slug}"
    return place / f"{name}.json"


def _is_estimate(source: str | CommandToCapture) -> bool:
    return isinstance(source, str) and is_estimate_file(source)


def outcomes_of(checks: Sequence[Check]) -> Iterator[CheckOutcome]:
    """Judge a job on all of its GPUs; one that cannot be read or captured does not stop the others."""
    job = checks[0].job
    with scratch_folder() as folder:
        estimate = _estimator(job, folder)
        for entry in checks:
            try:
                needed = estimate(entry)
                yield judge(job.name, str(job.source), needed, job.asked.limits, entry.baseline)
            except ConfigError:
                raise
            except XmemError as error:
                yield failed_outcome(job.name, str(job.source), job.asked.limits, error)


def _estimator(job: CheckedJob, folder: Path) -> Callable[[Check], Estimate]:
    """Return a function that estimates this kind of job, reading or capturing once where that is enough."""
    source = job.source
    if isinstance(source, CommandToCapture):
        captured = _Captured(source, folder)
        return lambda entry: _without_path(_estimate(captured.observation(entry.question), entry))
    if is_estimate_file(source):
        return lambda entry: _written_estimate(source, entry)
    observed = cache(lambda: job_input.observed(source, job.at))
    return lambda entry: _estimate(observed(), entry)


def _estimate(observation: Observation, entry: Check) -> Estimate:
    from xmem.estimation.pipeline import answer

    return answer(observation, entry.question).estimate


def _without_path(estimate: Estimate) -> Estimate:
    """Clear the trace's path, since the trace of a command is not kept."""
    return replace(estimate, trace=replace(estimate.trace, path=""))


@dataclass
class _Captured:
    """A command's run; one per GPU on phantom GPUs, since PyTorch asks the GPU for its capabilities."""

    command: CommandToCapture
    folder: Path
    last: Observation | None = None

    def observation(self, question: Question) -> Observation:
        from xmem.run.recorded import Origin

        if self.last is None or self.last.recorded.origin is Origin.PHANTOM:
            self.last = self._capture(question)
        return self.last

    def _capture(self, question: Question) -> Observation:
        from xmem.capture import Extent

        trace = self.folder / "trace.json"
        settings = CaptureSettings(
            mode=options.CaptureMode(self.command.mode),
            extent=Extent(self.command.iterations),
            timeout=self.command.timeout_s,
        )
        # The script must not print into the results.
        capture_noting(list(self.command.arguments), trace, settings, question, as_json=True)
        return job_input.observed(str(trace), None)


def _written_estimate(source: str, entry: Check) -> Estimate:
    """Return an estimate that was made earlier, if it answers the question.

    Raises:
        ConfigError: It is for another GPU, other settings or another confidence.
        TraceError: It cannot be read.
    """
    estimate, asked = read_estimate(source), entry.job.asked
    if entry.gpu is not None:
        from xmem.devices.gpus import find_device

        slug = find_device(entry.gpu).slug
        if slug != estimate.target.gpu:
            raise ConfigError(
                f"--gpu {entry.gpu} does not match {source}, "
                f"an estimate for {estimate.target.gpu or 'no GPU'}",
                "pass the trace that it was made from, which can be estimated for any GPU",
            )
    if asked.alloc_conf is not None or asked.torch_version is not None:
        raise ConfigError(
            f"--alloc-conf and --torch cannot be changed for {source}, which is an estimate",
            "pass the trace that it was made from",
        )
    limits, interval = asked.limits, estimate.interval
    if asked.confidence is not None and (interval is None or interval.confidence != asked.confidence):
        made = "no interval" if interval is None else f"an interval of confidence {interval.confidence:g}"
        raise ConfigError(
            f"--confidence {asked.confidence:g} does not match the estimate {source}, which has {made}",
            "use that of the estimate, or pass the trace that it was made from",
        )
    if limits.budget_bytes is None and entry.baseline_file is None and estimate.verdict is None:
        raise ConfigError(f"{entry.job.name} has no limit to check against", "pass --budget or --baseline")
    return estimate


def update_baselines(outcomes: Sequence[CheckOutcome], checks: Sequence[Check]) -> None:
    """Write the estimates of the checks that have an answer, each to its own file.

    Raises:
        ConfigError: A file cannot be written.
    """
    for outcome, entry in zip(outcomes, checks, strict=True):
        if outcome.estimate is not None and entry.baseline_file is not None:
            write_baseline(entry.baseline_file, outcome.estimate)
            output.note(f"wrote {entry.baseline_file}")
