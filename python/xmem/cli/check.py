"""``xmem-fast check``: a gate for continuous integration."""

from __future__ import annotations

import glob
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmem.cli import job as job_input
from xmem.cli import options, output
from xmem.cli.capture import CaptureSettings, capture_noting
from xmem.cli.exit_codes import ExitCode
from xmem.errors import ConfigError, TraceError, XmemError
from xmem.estimate_file import is_estimate_file, read_estimate
from xmem.files import naming, write_whole
from xmem.gate import (
    Baseline,
    Metric,
    Outcome,
    failed_outcome,
    judge,
    parse_growth,
    read_baseline,
    write_baseline,
)
from xmem.gate.spec import Asked, CommandToCapture, Job, find_spec, limits_of, read_jobs
from xmem.units import parse_bytes

if TYPE_CHECKING:
    from xmem.estimate_result import Estimate
    from xmem.observation import Observation

_SUFFIXES = (".gz", ".zst", ".json")
_WILDCARDS = frozenset("*?[")


class CheckFormat(StrEnum):
    """How the answer is written."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def check(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE|ESTIMATE|MODEL",
            help="What is checked: traces, estimates of `estimate -o`, fitted models; patterns are expanded. "
            "Without any, the jobs of xmem.toml or of [tool.xmem.check] in pyproject.toml.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Check the jobs of this TOML file.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--job", metavar="NAME", help="Of the file, only this job; may be given several times."),
    ] = None,
    at: options.At = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="SIZE", help="The most that a job may need, such as 10GiB."),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            help="GPU that it has to fit on: a name that `xmem-fast gpus` lists, or a .toml file; "
            "may be given several times.",
        ),
    ] = None,
    metric: Annotated[
        Metric | None,
        typer.Option(
            "--metric", help="What is held to budget and baseline.", show_default=Metric.DEVICE_PEAK.value
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence",
            metavar="SHARE",
            help="Hold the upper bound with this confidence to budget and GPU, such as 0.9.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            metavar="FILE|FOLDER",
            help="An earlier estimate (.json) that it must not grow beyond, or a folder with one a job.",
        ),
    ] = None,
    max_growth: Annotated[
        str | None,
        typer.Option(
            "--max-growth",
            metavar="SIZE|SHARE",
            help="How far it may grow beyond the baseline, such as 5% or 200MiB.",
            show_default="0",
        ),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the baselines instead of comparing with them.")
    ] = False,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    cudnn: options.PlannedBy = None,
    format_name: Annotated[
        CheckFormat | None,
        typer.Option(
            "--format",
            help="github: marks lines of a pull request; sarif: for code scanners.",
            show_default=CheckFormat.TEXT.value,
        ),
    ] = None,
    as_json: options.Json = False,
    output_file: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write it to FILE, and text to stdout."),
    ] = None,
) -> None:
    """Hold jobs to a budget, a GPU or a baseline: exit status 1 when one is over.

    Exit status: 0 all within, 1 one is over or grew, 2 usage, 3 one could not be read or captured.
    """
    if as_json and format_name not in (None, CheckFormat.JSON):
        raise ConfigError(f"--json and --format {format_name}", "one of them")
    written_as = CheckFormat.JSON if as_json else format_name or CheckFormat.TEXT
    limits_of(budget=budget, metric=metric, max_growth=max_growth, upper=confidence is not None)
    if cudnn is not None:
        options.target_options(None, None, None, None, cudnn)

    def overridden(asked: Asked) -> Asked:
        """What the command line says wins over the file."""
        limits = asked.limits
        if budget is not None:
            limits = replace(limits, budget_bytes=parse_bytes(budget))
        if metric is not None:
            limits = replace(limits, metric=metric)
        if max_growth is not None:
            limits = replace(limits, max_growth=parse_growth(max_growth))
        if confidence is not None:
            limits = replace(limits, upper=True)
        return Asked(
            limits=limits,
            gpus=asked.gpus if gpu is None else tuple(gpu),
            confidence=asked.confidence if confidence is None else confidence,
            baseline=asked.baseline if baseline is None else baseline,
            alloc_conf=asked.alloc_conf if alloc_conf is None else alloc_conf,
            torch_version=asked.torch_version if torch_version is None else torch_version,
        )

    jobs = _jobs_of_file(config, only) if not inputs else _jobs_of_inputs(inputs, config, only, at)
    checks = _checks([replace(job, asked=overridden(job.asked)) for job in jobs], update=update_baseline)
    outcomes = [outcome for of_job in checks for outcome in _outcomes(of_job)]
    if update_baseline:
        _update_baselines(outcomes, [entry for of_job in checks for entry in of_job])
    _give(outcomes, written_as, output_file)


def _jobs_of_inputs(
    inputs: Sequence[str], config: Path | None, only: list[str] | None, at: str | None
) -> list[Job]:
    if config is not None or only:
        raise ConfigError("--config or --job beside inputs", "either inputs, or the jobs of a file")
    sources = [source for pattern in inputs for source in _expanded(pattern)]
    stems = [_stem(source) for source in sources]
    twice = {stem for stem, count in Counter(stems).items() if count > 1}
    return [
        Job(name=source if stem in twice else stem, source=source, at=at)
        for source, stem in zip(sources, stems, strict=True)
    ]


def _expanded(pattern: str) -> list[str]:
    if not _WILDCARDS & set(pattern) or "://" in pattern or Path(pattern).exists():
        return [pattern]
    found = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - patterns may be absolute
    if not found:
        raise TraceError("no file matches; check the pattern", pattern)
    return found


def _stem(source: str) -> str:
    name = source.rstrip("/").rsplit("/", 1)[-1]
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name or source


def _jobs_of_file(config: Path | None, only: list[str] | None) -> list[Job]:
    path = find_spec(Path()) if config is None else config
    if path is None:
        raise ConfigError(
            "nothing to check", "a trace, an estimate, or an xmem.toml with [check.jobs.NAME] tables"
        )
    jobs = read_jobs(path)
    if not only:
        return list(jobs)
    names = [job.name for job in jobs]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ConfigError(f"--job {unknown[0]}", f"one of {', '.join(names)}")
    return [job for job in jobs if job.name in only]


@dataclass(frozen=True)
class _Check:
    """One job on one GPU, or on none.

    Attributes:
        job: What is checked.
        gpu: Name as given.
        baseline_file: Where its baseline is kept, None when there is none.
        baseline: What is in it, None when it is to be written.
    """

    job: Job
    gpu: str | None
    baseline_file: Path | None
    baseline: Baseline | None

    @property
    def target(self) -> options.TargetOptions:
        asked = self.job.asked
        return options.target_options(self.gpu, None, asked.alloc_conf, asked.torch_version)


def _checks(jobs: Sequence[Job], *, update: bool) -> list[list[_Check]]:
    """What is to be done for each job; everything that can be wrong is said now, before minutes of capture.

    Raises:
        ConfigError: A job is held to nothing, or a setting cannot be meant.
        TraceError: A baseline cannot be read.
    """
    found = []
    for job in jobs:
        options.confidence_or_default(job.asked.confidence)
        limits_of(budget=None, metric=job.asked.limits.metric, max_growth=None, upper=job.asked.limits.upper)
        if update and job.asked.baseline is None:
            raise ConfigError(f"--update-baseline of {job.name}", "--baseline with it")
        held = job.asked.limits.budget_bytes is not None or job.asked.gpus or job.asked.baseline is not None
        if not held and not _is_estimate(job.source):
            raise ConfigError(f"{job.name} without a limit", "--budget, --gpu or --baseline")
        checks = []
        for gpu in job.asked.gpus or (None,):
            file = _baseline_file(job, gpu)
            baseline = None if file is None or update else read_baseline(file)
            checks.append(_Check(job, gpu, file, baseline))
            checks[-1].target  # noqa: B018 - checks the names
        found.append(checks)
    files = Counter(entry.baseline_file for checks in found for entry in checks if entry.baseline_file)
    if files and files.most_common(1)[0][1] > 1:
        shared = files.most_common(1)[0][0]
        raise ConfigError(f"the baseline {shared} of several checks", "a folder, with a file for each")
    return found


def _baseline_file(job: Job, gpu: str | None) -> Path | None:
    place = job.asked.baseline
    if place is None or (place.suffix == ".json" and not place.is_dir()):
        return place
    name = job.name.replace("/", "_")
    if gpu is not None and len(job.asked.gpus) > 1:
        from xmem.devices import find_device

        name += f"-{find_device(gpu).slug}"
    return place / f"{name}.json"


def _is_estimate(source: str | CommandToCapture) -> bool:
    return isinstance(source, str) and is_estimate_file(source)


def _outcomes(checks: Sequence[_Check]) -> Iterator[Outcome]:
    """Judge a job on all of its GPUs; one that cannot be read or captured does not keep the others back."""
    job = checks[0].job
    with tempfile.TemporaryDirectory(prefix="xmem-") as folder:
        estimate = _estimator(job, Path(folder))
        for entry in checks:
            try:
                needed = estimate(entry)
                yield judge(job.name, str(job.source), needed, job.asked.limits, entry.baseline)
            except ConfigError:
                raise
            except XmemError as error:
                yield failed_outcome(job.name, str(job.source), job.asked.limits, error)


def _estimator(job: Job, folder: Path) -> Callable[[_Check], Estimate]:
    """How this kind of job is estimated, reading or capturing once wherever once is enough."""
    source = job.source
    if isinstance(source, CommandToCapture):
        captured = _Captured(source, folder)
        return lambda entry: _without_path(_estimate(captured.observation(entry.target), entry))
    if is_estimate_file(source):
        return lambda entry: _written_estimate(source, entry)
    observed = cache(lambda: job_input.observed(source, job.at))
    return lambda entry: _estimate(observed(), entry)


def _estimate(observation: Observation, entry: _Check) -> Estimate:
    import xmem

    confidence = options.confidence_or_default(entry.job.asked.confidence)
    return xmem.estimate(observation, confidence=confidence, **entry.target)


def _without_path(estimate: Estimate) -> Estimate:
    """The trace of a command is not kept."""
    return replace(estimate, trace=replace(estimate.trace, path=""))


@dataclass
class _Captured:
    """A command's run; on phantom GPUs one for each GPU, since PyTorch asks the GPU what it can do."""

    command: CommandToCapture
    folder: Path
    last: Observation | None = None

    def observation(self, target: options.TargetOptions) -> Observation:
        from xmem.job_settings import phantom_notes

        if self.last is None or phantom_notes(self.last.recorded.trace):
            self.last = self._capture(target)
        return self.last

    def _capture(self, target: options.TargetOptions) -> Observation:
        trace = self.folder / "trace.json"
        settings = CaptureSettings(
            mode=options.CaptureMode(self.command.mode),
            iterations=self.command.iterations,
            timeout=self.command.timeout_s,
        )
        # The script must not print into our results.
        capture_noting(list(self.command.arguments), trace, settings, target, as_json=True)
        return job_input.observed(str(trace), None)


def _written_estimate(source: str, entry: _Check) -> Estimate:
    """An estimate that was made before, if it answers what is asked.

    Raises:
        ConfigError: It is for another GPU, other settings or another confidence.
        TraceError: It cannot be read.
    """
    estimate, asked = read_estimate(source), entry.job.asked
    if entry.gpu is not None:
        from xmem.devices import find_device

        slug = find_device(entry.gpu).slug
        if slug != estimate.target.gpu:
            raise ConfigError(
                f"--gpu {entry.gpu} of {source}, an estimate for {estimate.target.gpu or 'no GPU'}",
                "the trace that it was made from, which can be estimated for any GPU",
            )
    if asked.alloc_conf is not None or asked.torch_version is not None:
        raise ConfigError(
            f"--alloc-conf or --torch of {source}, an estimate", "the trace that it was made from"
        )
    limits, interval = asked.limits, estimate.interval
    if asked.confidence is not None and (interval is None or interval.confidence != asked.confidence):
        made = "no interval" if interval is None else f"an interval of confidence {interval.confidence:g}"
        raise ConfigError(
            f"--confidence {asked.confidence:g} of {source}", f"that of the estimate, which has {made}"
        )
    if limits.budget_bytes is None and entry.baseline_file is None and estimate.verdict is None:
        raise ConfigError(f"{entry.job.name} without a limit", "--budget or --baseline")
    return estimate


def _update_baselines(outcomes: Sequence[Outcome], checks: Sequence[_Check]) -> None:
    for outcome, entry in zip(outcomes, checks, strict=True):
        if outcome.estimate is not None and entry.baseline_file is not None:
            write_baseline(entry.baseline_file, outcome.estimate)
            output.note(f"wrote {entry.baseline_file}")


def _give(outcomes: Sequence[Outcome], written_as: CheckFormat, file: Path | None) -> None:
    """Write the answer, and end the command with its status.

    Raises:
        typer.Exit: Always.
        ConfigError: A file cannot be written; the answer has been printed all the same.
    """
    from xmem.reports.gate import text

    on_github = written_as is CheckFormat.GITHUB or (
        file is not None and os.environ.get("GITHUB_ACTIONS") == "true"
    )
    if file is not None or written_as in (CheckFormat.TEXT, CheckFormat.GITHUB):
        text.render(outcomes, output.console())
        if on_github:
            from xmem.reports.gate import github

            typer.echo(github.commands(outcomes), nl=False)
    else:
        typer.echo(_written(outcomes, written_as), nl=False)
        for outcome in outcomes:
            if outcome.error is not None:
                output.note(str(outcome.error))
    if file is not None:
        with naming(f"-o {file}"):
            write_whole(file, _written(outcomes, written_as).encode())
    if on_github:
        _append_step_summary(outcomes)
    raise typer.Exit(_status(outcomes))


def _status(outcomes: Sequence[Outcome]) -> ExitCode:
    if any(outcome.estimate is None for outcome in outcomes):
        return ExitCode.BAD_INPUT
    return ExitCode.DONE if all(outcome.passed for outcome in outcomes) else ExitCode.DOES_NOT_FIT


def _written(outcomes: Sequence[Outcome], written_as: CheckFormat) -> str:
    """The answer as the contents of a file."""
    if written_as is CheckFormat.JSON:
        value = {
            "schema_version": 1,
            "passed": all(outcome.passed for outcome in outcomes),
            "checks": [outcome.to_json() for outcome in outcomes],
        }
        return json.dumps(value, indent=2) + "\n"
    if written_as is CheckFormat.SARIF:
        from importlib import metadata

        from xmem.reports.gate.sarif import sarif_log

        return json.dumps(sarif_log(outcomes, metadata.version("xmem-fast")), indent=2) + "\n"
    from xmem.reports.gate import github, text

    written = text.plain(outcomes)
    return written + github.commands(outcomes) if written_as is CheckFormat.GITHUB else written


def _append_step_summary(outcomes: Sequence[Outcome]) -> None:
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    from xmem.reports.gate import github

    with naming(f"GITHUB_STEP_SUMMARY={summary}"), Path(summary).open("a", encoding="utf-8") as file:
        file.write(github.step_summary(outcomes))
