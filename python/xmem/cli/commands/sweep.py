"""``xmem-fast sweep``: thousands of configurations of one job."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmem.cli import options, output
from xmem.cli.capturing import CaptureSettings, capture_noting
from xmem.cli.exit_codes import ExitCode
from xmem.cli.options import CaptureMode
from xmem.errors import ConfigError
from xmem.text.numbers import whole_number
from xmem.text.units import format_bytes

if TYPE_CHECKING:
    from xmem.sweep import SweepSummary
    from xmem.sweep.captures import CommandJob
    from xmem.sweep.driver import Watch
    from xmem.sweep.executors import Executor


class ExecutorName(StrEnum):
    """Executor that evaluates the configurations."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"


def sweep(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="Configurations to try: a TOML file.", show_default=False)
    ],
    results: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="RESULTS", help="Table to write: .parquet, .csv or .jsonl."),
    ],
    executor: Annotated[
        ExecutorName, typer.Option("--executor", help="Executor that evaluates the configurations.")
    ] = ExecutorName.LOCAL,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Threads, tasks of Ray or jobs of Slurm at once."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="ADDRESS", help="Address of the Ray cluster; by default one on this machine."
        ),
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            "--slurm", metavar="KEY=VALUE", help="Parameter for submitit, such as slurm_partition=cpu."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget the rows and captures of an earlier run.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Evaluate every configuration of a sweep; one that was stopped resumes where it was.

    Exit status: 0 done, 2 usage, 3 bad input, failed capture or no row with an answer, 130 interrupted.
    """
    from xmem.sweep import read_spec, run_sweep

    chosen = _executor(executor, results, workers, address, slurm or [])
    try:
        with _progress() as watch:
            summary = run_sweep(
                read_spec(spec), results, executor=chosen, capture=_capture, fresh=fresh, watch=watch
            )
    except KeyboardInterrupt:
        output.note("finished rows are kept; run the same command again to continue")
        raise
    if as_json:
        fields = asdict(summary) | {"results": str(summary.results), "state": str(summary.state)}
        output.print_json({"schema_version": 1, "executor": executor.value, **fields})
    else:
        typer.echo(_told(summary))
        if summary.best:
            _print_best(summary.best)
    raise typer.Exit(ExitCode.BAD_INPUT if summary.errors == summary.configurations else ExitCode.DONE)


def _told(summary: SweepSummary) -> str:
    counts = [f"{summary.configurations:,} configurations"]
    if summary.fitting or summary.misfits:
        counts += [f"{summary.fitting:,} fit", f"{summary.misfits:,} do not"]
    if summary.errors:
        counts.append(f"{summary.errors:,} have no answer (column error)")
    if summary.reused:
        counts.append(f"{summary.reused:,} from an earlier run")
    return f"{summary.results}: {', '.join(counts)}; {summary.seconds:.1f} s"


def _print_best(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the configurations that fit, those whose fullest GPU needs least first."""
    from rich.console import Console
    from rich.table import Table

    shown = [key for key in list(rows[0])[1 : list(rows[0]).index("capacity_bytes")] if _varies(rows, key)]
    table = Table(box=None, header_style="dim")
    for title in (*shown, "fullest GPU", "to spare"):
        table.add_column(title, justify="right")
    for row in rows:
        spare = "-" if row["margin_bytes"] is None else format_bytes(row["margin_bytes"])
        table.add_row(*(str(row[key]) for key in shown), format_bytes(row["device_peak_bytes"]), spare)
    Console().print(table)


def _varies(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return len({row[key] for row in rows}) > 1


def _executor(
    name: ExecutorName, results: Path, workers: int | None, address: str | None, slurm: list[str]
) -> Executor:
    """Return the executor that the options describe.

    Raises:
        ConfigError: An option belongs to another executor.
    """
    if address is not None and name is not ExecutorName.RAY:
        raise ConfigError(f"--address {address} needs --executor ray")
    if slurm and name is not ExecutorName.SLURM:
        raise ConfigError(f"--slurm {slurm[0]} needs --executor slurm")
    if name is ExecutorName.RAY:
        from xmem.sweep.executors.ray import RayExecutor

        return RayExecutor(address, workers)
    if name is ExecutorName.SLURM:
        from xmem.sweep.driver import state_folder
        from xmem.sweep.executors.slurm import SlurmExecutor

        parameters = dict(_parameter(text) for text in slurm)
        folder = state_folder(results) / "submitit"
        return SlurmExecutor(
            folder, **({} if workers is None else {"workers": workers}), parameters=parameters
        )
    from xmem.sweep.executors.local import LocalExecutor

    return LocalExecutor() if workers is None else LocalExecutor(workers)


def _parameter(text: str) -> tuple[str, str | int]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise ConfigError(f"--slurm {text} is not a KEY=VALUE pair", "write it like slurm_partition=cpu")
    number = whole_number(value)
    return key, value if number is None else number


def _capture(command: Sequence[str], trace: Path, job: CommandJob) -> None:
    from xmem.capture import Extent
    from xmem.estimation.question import Question

    settings = CaptureSettings(
        mode=CaptureMode(job.mode),
        extent=Extent(job.iterations),
        timeout=job.timeout_s,
        world_size=job.world_size,
        ranks=job.ranks,
        gpus_per_node=job.gpus_per_node,
    )
    output.note(f"capturing {' '.join(command)}")
    # The script must not print into the results.
    capture_noting(list(command), trace, settings, Question(job.device), as_json=True)


@contextmanager
def _progress() -> Iterator[Watch]:
    """Show a progress bar on stderr, on a terminal and once there are rows; remove it at the end."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("configurations"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    bar = progress.Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    task = bar.add_task("", total=None)

    def watch(done: int, total: int) -> None:
        bar.start()  # not before: a script that is captured writes there too
        bar.update(task, completed=done, total=total)

    try:
        yield watch
    finally:
        bar.stop()
