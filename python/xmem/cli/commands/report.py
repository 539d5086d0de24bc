"""``xmem-fast report``: the predicted run in the format of another tool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from xmem.cli import job, options, output
from xmem.cli.exit_codes import ExitCode
from xmem.errors import ConfigError
from xmem.estimation.estimate import Estimate
from xmem.files.writing import naming, writing
from xmem.reports.formats import (
    FORMATS,
    TERMINAL,
    ReportFormat,
    Wanted,
    Written,
    format_named,
    format_of_file,
)
from xmem.reports.tables import TableName
from xmem.text.units import format_bytes

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis


def report(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE|ESTIMATE",
            help="Profiler trace: .json, .json.gz, .json.zst, a URL, or - for standard input; or an estimate "
            "that `estimate -o` wrote.",
            show_default=False,
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write to; standard output by default."),
    ] = None,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(each.name for each in FORMATS),
            help="Format to write; by default the one that the name of FILE ends with.",
        ),
    ] = None,
    what: Annotated[
        TableName | None, typer.Option("--what", help="Table to write as csv or parquet; blocks by default.")
    ] = None,
    show_packages: options.ShowPackages = False,
    with_advice: options.WithAdvice = True,
    with_source: options.WithSource = True,
    at: options.At = None,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    cudnn: options.PlannedBy = None,
    as_json: options.Json = False,
) -> None:
    """Write the predicted run for readers, as a table, or for the viewers of other tools.

    With a GPU, memory_viz ends where the run would run out of memory. Exit status: 0 done, 1 it does not fit.
    """
    if file is not None and str(file) == "-":
        file = None
    chosen = _format(format_name, file)
    _require_possible(chosen, file, what, as_json)
    question = options.question(gpu, capacity, alloc_conf, torch_version, cudnn)
    is_retargeted = any(given is not None for given in (at, gpu, capacity, alloc_conf, torch_version))
    source: Analysis | Estimate
    if (made_before := job.estimate_in(trace)) is None:
        from xmem.estimation.pipeline import answer

        source = answer(job.observed(trace, at), question, show_packages=show_packages)
    elif chosen.needs_trace or show_packages or is_retargeted:
        wanted = "--show-packages" if show_packages else "setting a target"
        wanted = f"--format {chosen.name}" if chosen.needs_trace else wanted
        raise ConfigError(
            f"{wanted} needs a trace, and {trace} is an estimate", "pass the trace that it was made from"
        )
    else:
        source = made_before
    estimate = source if isinstance(source, Estimate) else source.estimate
    if file is None and chosen is TERMINAL:
        from xmem.reports.terminal.summary import render

        render(estimate, output.console())
    else:
        wanted_of_it = Wanted(what, with_advice, with_source)
        with _output(file) as out:
            written = chosen.written(source, out, wanted_of_it)
        if file is not None:
            _say(chosen, file, written, estimate, as_json)
    raise typer.Exit(ExitCode.DOES_NOT_FIT if estimate.fits is False else ExitCode.DONE)


def _format(given: str | None, file: Path | None) -> ReportFormat:
    if given is not None:
        return format_named(given)
    if file is None:
        return TERMINAL
    found = format_of_file(file.name)
    if found is None:
        endings = [ending for each in FORMATS for ending in each.endings]
        raise ConfigError(
            f"-o {file} does not name a known format",
            f"pass --format, or a name that ends in one of {', '.join(endings)}",
        )
    return found


def _require_possible(chosen: ReportFormat, file: Path | None, what: TableName | None, as_json: bool) -> None:
    if file is None and (chosen.is_binary or as_json):
        raise ConfigError(
            f"{'--json' if as_json else f'--format {chosen.name}'} needs a file to write the report to",
            "pass -o FILE",
        )
    chosen.require()
    if what is not None and not chosen.is_table:
        tables = [each.name for each in FORMATS if each.is_table]
        raise ConfigError(
            f"--what {what} cannot be combined with --format {chosen.name}",
            f"use --format {' or '.join(tables)}",
        )


@contextmanager
def _output(file: Path | None) -> Iterator[IO[bytes]]:
    if file is None:
        yield sys.stdout.buffer
        return
    with naming(f"-o {file}"), writing(file) as out:
        yield out


def _say(chosen: ReportFormat, file: Path, written: Written, estimate: Estimate, as_json: bool) -> None:
    if as_json:
        output.print_json(
            {
                "schema_version": 1,
                "path": str(file),
                "format": chosen.name,
                chosen.counted: written.count,
                "peak_reserved_bytes": written.peak_reserved_bytes,
                "fits": estimate.fits,
                "torch_version": estimate.target.torch_version,
            }
        )
        return
    ends = ", does not fit" if estimate.fits is False else ""
    peak = format_bytes(written.peak_reserved_bytes)
    typer.echo(f"{file}: {written.count:,} {chosen.counted}, {peak} reserved at the peak{ends}")
    if chosen.opened_with:
        output.note(chosen.opened_with)
