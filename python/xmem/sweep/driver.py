"""Driver of a sweep from its spec to its results: the only writer, whoever the workers are."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xmem.capture.capture import own_version
from xmem.errors import ConfigError, SweepError
from xmem.sweep.captures import Capture, Captured, CommandJob, captured_job, kept_files
from xmem.sweep.executors import Executor
from xmem.sweep.outcome import ConfigurationOutcome
from xmem.sweep.results import Row, require_writable, write_results
from xmem.sweep.spec import Spec
from xmem.sweep.store import Store, forget
from xmem.sweep.sweep_job import JobFile, job_of

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
        old_captures = kept_files(spec.job, folder) if isinstance(spec.job, CommandJob) else ()
        forget((state, *old_captures))
    captured = _captured(spec, folder, capture)
    job = JobFile.of(captured.path)
    _require_dimensions(spec, job_of(job).dimensions)
    total = len(spec.configurations)
    with Store(state, _identity(spec, job)) as store:
        finished = store.finished()
        reused = len(finished)
        watch(reused, total)
        pending = [each for each in spec.configurations if each.number not in finished]
        if pending:
            with closing(executor.run(job, pending)) as chunks:
                for rows in chunks:
                    store.add(rows)
                    finished.update(number for number, _ in rows)
                    watch(len(finished), total)
        outcomes = [outcome for _, outcome in store.outcomes()]
        if len(outcomes) != total:
            raise SweepError(f"{total - len(outcomes)} rows are missing; run the same command again")
        write_results(output, _columns(spec), _rows(spec, outcomes))
    return SweepSummary(
        results=output,
        state=state,
        configurations=total,
        reused=reused,
        fitting=sum(outcome.fits is True for outcome in outcomes),
        misfits=sum(outcome.fits is False for outcome in outcomes),
        errors=sum(outcome.error is not None for outcome in outcomes),
        captures_made=captured.made,
        captures_reused=captured.reused,
        seconds=time.perf_counter() - began,
    )


def _captured(spec: Spec, folder: Path, capture: Capture) -> Captured:
    if isinstance(spec.job, CommandJob):
        return captured_job(spec.job, folder, capture)
    return Captured(spec.job, (), 0, 0)


def _require_dimensions(spec: Spec, names: Sequence[str]) -> None:
    if set(names) != set(spec.dimensions):
        given = ", ".join(spec.dimensions) or "no dimension"
        wanted = ", ".join(names) or "no dimension, because it is a single trace"
        raise ConfigError(
            f"{spec.path}: the configurations set {given}, but the job has {wanted}",
            "set exactly the job's dimensions",
        )


def _identity(spec: Spec, job: JobFile) -> str:
    """Return a digest of everything that the rows depend on."""

    @cache
    def described(number_of_gpu: int) -> str:
        return repr(gpus[number_of_gpu])

    gpus = {id(each.device): each.device for each in spec.configurations}
    content = hashlib.sha256(f"{own_version()} {job.digest}\n".encode())
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
