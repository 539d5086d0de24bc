"""Driver of a sweep from its spec to its results: the only writer, whoever the workers are."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

from xmem import __version__
from xmem.errors import CaptureError, ConfigError, SweepError
from xmem.records import dataclass
from xmem.sweep.captures import Capture, Captured, CommandJob, captured_job, kept_files
from xmem.sweep.configuration import Configuration
from xmem.sweep.evaluate import Finished
from xmem.sweep.executors import Executor
from xmem.sweep.layouts import Layout, job_at
from xmem.sweep.outcome import ConfigurationOutcome
from xmem.sweep.results import Row, require_writable, write_results
from xmem.sweep.spec import Spec
from xmem.sweep.store import Store, forget
from xmem.sweep.sweep_job import JobFile, job_of

_MOST_BEST = 10  # for each GPU

Watch = Callable[[int, int], None]
"""Callback that receives the number of finished rows and of all rows."""


@dataclass(frozen=True)
class SweepSummary:
    """A finished sweep.

    Attributes:
        results: The file with the results.
        state: The database, from which the same sweep would resume.
        configurations: Number of rows.
        reused: Rows that an earlier run had finished.
        fitting: Rows whose job fits on its GPU.
        misfits: Rows whose job does not.
        errors: Rows without an answer.
        captures_made: Runs of the command.
        captures_reused: Runs of the command that were not needed again.
        seconds: Time from the start to the written file.
        best: Of several layouts, the rows that fit each GPU, those that need least first.
    """

    results: Path
    state: Path
    configurations: int
    reused: int
    fitting: int
    misfits: int
    errors: int
    captures_made: int
    captures_reused: int
    seconds: float
    best: tuple[Row, ...] = ()


def state_folder(output: Path) -> Path:
    """Return the folder in which a sweep with these results keeps its rows and captures."""
    return output.absolute().parent / ".xmem-sweep"


def run_sweep(
    spec: Spec,
    output: Path,
    *,
    executor: Executor,
    capture: Capture,
    fresh: bool = False,
    watch: Watch = lambda _done, _total: None,
) -> SweepSummary:
    """Evaluate every configuration that has no row yet and write the results.

    Args:
        spec: The spec of the sweep.
        output: File for the table; its suffix sets the format.
        executor: Executor that evaluates the configurations.
        capture: Function that captures a command of the spec.
        fresh: Forget rows and captures of an earlier run.
        watch: Callback for the progress.

    Raises:
        ConfigError: The spec and the job do not match, or the state is that of another sweep.
        CaptureError: The command failed.
        TraceError: The job cannot be read.
        SweepError: Rows cannot be stored or written, or the workers failed.
    """
    began = time.perf_counter()
    require_writable(output)
    folder = state_folder(output)
    state = folder / f"{output.name}.sqlite"
    if fresh:
        forget((state, *_old_captures(spec, folder)))
    jobs = [_captured(spec, layout, folder, capture) for layout in spec.layouts]
    total = len(spec.configurations)
    with Store(state, _identity(spec, jobs)) as store:
        finished = store.finished()
        reused = len(finished)
        watch(reused, total)
        for job, configurations in zip(jobs, _by_layout(spec), strict=True):
            pending = [each for each in configurations if each.number not in finished]
            with closing(_evaluated(job, pending, executor)) as chunks:
                for rows in chunks:
                    store.add(rows)
                    finished.update(number for number, _ in rows)
                    watch(len(finished), total)
        outcomes = [outcome for _, outcome in store.outcomes()]
        if len(outcomes) != total:
            raise SweepError(f"{total - len(outcomes)} rows are missing; run the same command again")
        table = _rows(spec, outcomes)
        write_results(output, _columns(spec), table)
    return SweepSummary(
        results=output,
        state=state,
        configurations=total,
        reused=reused,
        fitting=sum(outcome.fits is True for outcome in outcomes),
        misfits=sum(outcome.fits is False for outcome in outcomes),
        errors=sum(outcome.error is not None for outcome in outcomes),
        captures_made=sum(job.made for job in jobs),
        captures_reused=sum(job.reused for job in jobs),
        seconds=time.perf_counter() - began,
        best=_best(table) if len(spec.layouts) > 1 else (),
    )


@dataclass(frozen=True)
class _LayoutJob:
    """The job of one layout.

    Attributes:
        file: The job; None where its command failed.
        error: Why it failed.
        made: Number of new captures.
        reused: Number of captures that existed already.
    """

    file: JobFile | None
    error: str = ""
    made: int = 0
    reused: int = 0


def _old_captures(spec: Spec, folder: Path) -> list[Path]:
    job = spec.job
    if not isinstance(job, CommandJob):
        return []
    return [file for layout in spec.layouts for file in kept_files(job_at(job, layout), folder)]


def _captured(spec: Spec, layout: Layout, folder: Path, capture: Capture) -> _LayoutJob:
    """Return the job in a layout; of several layouts, one whose command fails is an answer of its own."""
    try:
        if isinstance(spec.job, CommandJob):
            captured = captured_job(job_at(spec.job, layout), folder, capture)
        else:
            captured = Captured(spec.job, (), 0, 0)
    except CaptureError as error:
        if len(spec.layouts) == 1:
            raise
        return _LayoutJob(None, str(error))
    file = JobFile.of(captured.path)
    _require_dimensions(spec, job_of(file).dimensions)
    return _LayoutJob(file, "", captured.made, captured.reused)


def _by_layout(spec: Spec) -> list[tuple[Configuration, ...]]:
    each = len(spec.configurations) // len(spec.layouts)
    return [spec.configurations[first : first + each] for first in range(0, len(spec.configurations), each)]


def _evaluated(job: _LayoutJob, pending: Sequence[Configuration], executor: Executor) -> Generator[Finished]:
    if job.file is None:
        yield [(each.number, ConfigurationOutcome(error=job.error)) for each in pending]
    elif pending:
        yield from executor.run(job.file, pending)


def _best(table: Sequence[Row]) -> tuple[Row, ...]:
    """Return for each GPU the rows that fit, with the smallest need first; of many, some."""
    best: dict[str | None, list[Row]] = {row["gpu"]: [] for row in table}
    for row in table:
        if row["error"] is None and row["fits"] is not False:
            best[row["gpu"]].append(row)
    return tuple(
        row
        for rows in best.values()
        for row in sorted(rows, key=lambda row: int(row["device_peak_bytes"]))[:_MOST_BEST]
    )


def _require_dimensions(spec: Spec, names: Sequence[str]) -> None:
    if set(names) != set(spec.dimensions):
        given = ", ".join(spec.dimensions) or "no dimension"
        wanted = ", ".join(names) or "no dimension, because it is a single trace"
        raise ConfigError(
            f"{spec.path}: the configurations set {given}, but the job has {wanted}",
            "set exactly the job's dimensions",
        )


def _identity(spec: Spec, jobs: Sequence[_LayoutJob]) -> str:
    """Return a digest of everything that the rows depend on."""

    @cache
    def described(number_of_gpu: int) -> str:
        return repr(gpus[number_of_gpu])

    gpus = {id(each.device): each.device for each in spec.configurations}
    digests = " ".join(job.error if job.file is None else job.file.digest for job in jobs)
    content = hashlib.sha256(f"{__version__} {digests}\n".encode())
    for each in spec.configurations:
        content.update(json.dumps([each.inputs(), described(id(each.device))]).encode())
    return content.hexdigest()


def _columns(spec: Spec) -> list[str]:
    return [*spec.configurations[0].inputs(), *ConfigurationOutcome().columns()]


def _rows(spec: Spec, outcomes: Sequence[ConfigurationOutcome]) -> list[Row]:
    return [
        {**configuration.inputs(), **outcome.columns()}
        for configuration, outcome in zip(spec.configurations, outcomes, strict=True)
    ]
