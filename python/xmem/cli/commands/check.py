"""``xmem-fast check``: a gate for continuous integration."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmem.cli import options
from xmem.cli.check_answer import CheckFormat, give
from xmem.errors import ConfigError, TraceError
from xmem.gate.limits import Metric, parse_growth
from xmem.text.units import parse_bytes

if TYPE_CHECKING:
    from xmem.gate.spec import CheckedJob

_SUFFIXES = (".gz", ".zst", ".json")
_WILDCARDS = frozenset("*?[")


def check(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE|ESTIMATE|MODEL",
            help="What to check: traces, estimates of `estimate -o`, fitted models; patterns are expanded. "
            "Without any, the jobs of xmem.toml or of [tool.xmem.check] in pyproject.toml.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Check the jobs of this TOML file.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--job", metavar="NAME", help="Check only this job of the file; may be given several times."
        ),
    ] = None,
    at: options.At = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="SIZE", help="Most memory that a job may need, such as 10GiB."),
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
            "--metric",
            help="Which memory figure to compare with budget and baseline.",
            show_default=Metric.DEVICE_PEAK.value,
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence",
            metavar="SHARE",
            help="Compare the upper bound at this confidence with budget and GPU, such as 0.9.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            metavar="FILE|FOLDER",
            help="An earlier estimate (.json) that it must not grow beyond, or a folder with one per job.",
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
        typer.Option("-o", "--output", metavar="FILE", help="Write the answer to FILE, and text to stdout."),
    ] = None,
) -> None:
    """Hold jobs to a budget, a GPU or a baseline: exit status 1 when one is over.

    Exit status: 0 all within, 1 one is over or grew, 2 usage, 3 one could not be read or captured.
    """
    from xmem.cli.check_jobs import checks_of, outcomes_of, require_sources_kept, update_baselines
    from xmem.gate.spec import Asked, limits_of

    if as_json and format_name not in (None, CheckFormat.JSON):
        raise ConfigError(f"--json and --format {format_name} cannot be combined")
    written_as = CheckFormat.JSON if as_json else format_name or CheckFormat.TEXT
    limits_of(budget=budget, metric=metric, max_growth=max_growth, upper=confidence is not None)
    if cudnn is not None:
        options.question(cudnn=cudnn)

    def overridden(asked: Asked) -> Asked:
        """Override the settings of the file with those of the command line."""
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
    checks = checks_of([replace(job, asked=overridden(job.asked)) for job in jobs], update=update_baseline)
    if max_growth is not None and not any(entry.baseline_file for of_job in checks for entry in of_job):
        raise ConfigError("--max-growth has no baseline to compare with", "pass --baseline with it")
    require_sources_kept(
        [entry for of_job in checks for entry in of_job], output_file, updates=update_baseline
    )
    outcomes = [outcome for of_job in checks for outcome in outcomes_of(of_job)]
    if update_baseline:
        update_baselines(outcomes, [entry for of_job in checks for entry in of_job])
    give(outcomes, written_as, output_file)


def _jobs_of_inputs(
    inputs: Sequence[str], config: Path | None, only: list[str] | None, at: str | None
) -> list[CheckedJob]:
    from xmem.gate.spec import CheckedJob

    if config is not None or only:
        raise ConfigError(
            "--config and --job cannot be combined with inputs", "pass either inputs, or a file of jobs"
        )
    sources = [source for pattern in inputs for source in _expanded(pattern)]
    stems = [_stem(source) for source in sources]
    twice = {stem for stem, count in Counter(stems).items() if count > 1}
    return [
        CheckedJob(name=source if stem in twice else stem, source=source, at=at)
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


def _jobs_of_file(config: Path | None, only: list[str] | None) -> list[CheckedJob]:
    from xmem.gate.spec import find_spec, read_jobs

    path = find_spec(Path()) if config is None else config
    if path is None:
        raise ConfigError(
            "there is nothing to check",
            "pass a trace or an estimate, or write an xmem.toml with [check.jobs.NAME] tables",
        )
    jobs = read_jobs(path)
    if not only:
        return list(jobs)
    names = [job.name for job in jobs]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ConfigError(f"--job {unknown[0]} is not in {path}", f"use one of {', '.join(names)}")
    return [job for job in jobs if job.name in only]
