"""``xmem-fast report``: the predicted run in the format of another tool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from xmem.cli import job, options, output
from xmem.cli.exit_codes import ExitCode
from xmem.errors import ConfigError
from xmem.estimate_result import Estimate
from xmem.files import naming, writing
from xmem.units import format_bytes

if TYPE_CHECKING:
    from xmem.pipeline import Analysis


class FormatName(StrEnum):
    """The formats that can be written."""

    HTML = "html"
    TERMINAL = "terminal"
    CSV = "csv"
    PARQUET = "parquet"
    MEMORY_VIZ = "memory_viz"
    PERFETTO = "perfetto"
    SPEEDSCOPE = "speedscope"
    FLAMEGRAPH = "flamegraph"
    TREE = "tree"


@dataclass(frozen=True)
class _Written:
    """What a report is made of.

    Attributes:
        count: Of what `_COUNTED` says.
        peak_reserved_bytes: Of the run as written.
    """

    count: int
    peak_reserved_bytes: int


class TableChoice(StrEnum):
    """The tables of `--format csv` and `parquet`."""

    BLOCKS = "blocks"
    BREAKDOWN = "breakdown"
    TIMELINE = "timeline"


_ENDINGS = {  # the longer of two that match is the first
    ".speedscope.json": FormatName.SPEEDSCOPE,
    ".tree.json": FormatName.TREE,
    ".json": FormatName.PERFETTO,
    ".html": FormatName.HTML,
    ".txt": FormatName.TERMINAL,
    ".csv": FormatName.CSV,
    ".parquet": FormatName.PARQUET,
    ".pickle": FormatName.MEMORY_VIZ,
    ".pkl": FormatName.MEMORY_VIZ,
    ".folded": FormatName.FLAMEGRAPH,
}
_BINARY = (FormatName.PARQUET, FormatName.MEMORY_VIZ)
_NEED_TRACE = (FormatName.HTML, FormatName.MEMORY_VIZ, FormatName.PERFETTO, FormatName.TREE)
_NOTES = {
    FormatName.MEMORY_VIZ: "open it at https://pytorch.org/memory_viz or by python -m torch.cuda._memory_viz",
    FormatName.PERFETTO: "open it at https://ui.perfetto.dev or chrome://tracing",
    FormatName.SPEEDSCOPE: "open it at https://www.speedscope.app",
    FormatName.FLAMEGRAPH: "draw it with flamegraph.pl, inferno-flamegraph or https://www.speedscope.app",
}
_COUNTED = {
    FormatName.CSV: "rows",
    FormatName.PARQUET: "rows",
    FormatName.MEMORY_VIZ: "events",
    FormatName.PERFETTO: "events",
    FormatName.SPEEDSCOPE: "holders",
    FormatName.FLAMEGRAPH: "stacks",
    FormatName.TREE: "modules",
}


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
        typer.Option("-o", "--output", metavar="FILE", help="Where to; standard output by default."),
    ] = None,
    format_name: Annotated[
        FormatName | None,
        typer.Option("--format", help="What to write; by default what the name of FILE ends with."),
    ] = None,
    what: Annotated[
        TableChoice | None, typer.Option("--what", help="Of csv and parquet: the table, blocks by default.")
    ] = None,
    show_packages: options.ShowPackages = False,
    with_advice: options.WithAdvice = True,
    at: options.At = None,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    cudnn: options.PlannedBy = None,
    as_json: options.Json = False,
) -> None:
    """Write the predicted run for people, tables or the viewers of other tools.

    With a GPU, memory_viz ends where the run would run out of memory. Exit status: 0 done, 1 it does not fit.
    """
    if file is not None and str(file) == "-":
        file = None
    chosen = _format(format_name, file)
    _require_possible(chosen, file, what, as_json)
    target = options.target_options(gpu, capacity, alloc_conf, torch_version, cudnn)
    source: Analysis | Estimate
    if (made_before := job.estimate_in(trace)) is None:
        from xmem.pipeline import analyze

        source = analyze(job.observed(trace, at), show_packages=show_packages, **target)
    elif chosen in _NEED_TRACE or show_packages or any(value is not None for value in (at, *target.values())):
        wanted = "--show-packages" if show_packages else "setting a target"
        wanted = f"--format {chosen}" if chosen in _NEED_TRACE else wanted
        raise ConfigError(
            f"{wanted} needs a trace, and {trace} is an estimate", "pass the trace that it was made from"
        )
    else:
        source = made_before
    estimate = source if isinstance(source, Estimate) else source.estimate
    with _output(file) as out:
        written = _write(chosen, source, out, what, with_advice)
    if file is not None:
        _say(chosen, file, written, estimate, as_json)
    raise typer.Exit(ExitCode.DOES_NOT_FIT if estimate.fits is False else ExitCode.DONE)


def _format(given: FormatName | None, file: Path | None) -> FormatName:
    if given is not None:
        return given
    if file is None:
        return FormatName.TERMINAL
    for ending, format_name in _ENDINGS.items():
        if file.name.endswith(ending):
            return format_name
    raise ConfigError(
        f"-o {file} does not tell the format",
        f"pass --format, or a name that ends in one of {', '.join(_ENDINGS)}",
    )


def _require_possible(chosen: FormatName, file: Path | None, what: TableChoice | None, as_json: bool) -> None:
    if file is None and (chosen in _BINARY or as_json):
        raise ConfigError(
            f"{'--json' if as_json else f'--format {chosen}'} needs a file to write the report to",
            "pass -o FILE",
        )
    if chosen is FormatName.PARQUET:
        from xmem.reports.parquet_table import require_pyarrow

        require_pyarrow()
    if what is not None and chosen not in (FormatName.CSV, FormatName.PARQUET):
        raise ConfigError(
            f"--what {what} cannot be combined with --format {chosen}", "use --format csv or parquet"
        )


@contextmanager
def _output(file: Path | None) -> Iterator[IO[bytes]]:
    if file is None:
        yield sys.stdout.buffer
        return
    with naming(f"-o {file}"), writing(file) as out:
        yield out


def _write(
    chosen: FormatName,
    source: Analysis | Estimate,
    out: IO[bytes],
    what: TableChoice | None,
    with_advice: bool,
) -> _Written:
    estimate = source if isinstance(source, Estimate) else source.estimate
    if chosen is FormatName.MEMORY_VIZ:
        from xmem.reports.memory_viz import write_memory_viz

        assert not isinstance(source, Estimate)  # checked before the work
        return _Written(*write_memory_viz(source, out))
    count = _write_counted(chosen, source, out, what, with_advice)
    return _Written(count, estimate.peak_reserved_bytes)


def _write_counted(
    chosen: FormatName,
    source: Analysis | Estimate,
    out: IO[bytes],
    what: TableChoice | None,
    with_advice: bool,
) -> int:
    """Write any other report; the number of what it is made of."""
    match chosen:
        case FormatName.CSV | FormatName.PARQUET:
            from xmem.reports.tables import TableName, table_of

            default = TableChoice.BREAKDOWN if isinstance(source, Estimate) else TableChoice.BLOCKS
            table = table_of(source, TableName(what or default))
            if chosen is FormatName.CSV:
                from xmem.reports.csv_table import write_csv

                return write_csv(table, out)
            from xmem.reports.parquet_table import write_parquet

            return write_parquet(table, out)
        case FormatName.SPEEDSCOPE:
            from xmem.reports.speedscope import write_speedscope

            return write_speedscope(source, out)
        case FormatName.FLAMEGRAPH:
            from xmem.reports.folded_stacks import write_folded_stacks

            return write_folded_stacks(source, out)
        case FormatName.TERMINAL:
            return _write_terminal(source if isinstance(source, Estimate) else source.estimate, out)
    assert not isinstance(source, Estimate)  # checked before the work
    match chosen:
        case FormatName.PERFETTO:
            from xmem.reports.perfetto import write_perfetto

            return write_perfetto(source, out)
        case FormatName.TREE:
            from xmem.reports.tree import write_tree

            return write_tree(source, out)
        case _:
            from xmem.reports.html import page_of

            advised = output.advice_for_page(source) if with_advice else None
            return out.write(page_of(source, advised=advised).encode())


def _write_terminal(estimate: Estimate, out: IO[bytes]) -> int:
    from xmem.reports.terminal import render

    if out is sys.stdout.buffer:
        render(estimate, output.console())
        return 0
    import io

    from rich.console import Console

    text = io.StringIO()
    render(estimate, Console(file=text, width=100))
    return out.write(text.getvalue().encode())


def _say(chosen: FormatName, file: Path, written: _Written, estimate: Estimate, as_json: bool) -> None:
    counted = _COUNTED.get(chosen, "bytes")
    if as_json:
        output.print_json(
            {
                "schema_version": 1,
                "path": str(file),
                "format": chosen.value,
                counted: written.count,
                "peak_reserved_bytes": written.peak_reserved_bytes,
                "fits": estimate.fits,
                "torch_version": estimate.target.torch_version,
            }
        )
        return
    ends = ", does not fit" if estimate.fits is False else ""
    peak = format_bytes(written.peak_reserved_bytes)
    typer.echo(f"{file}: {written.count:,} {counted}, {peak} reserved at the peak{ends}")
    if chosen in _NOTES:
        output.note(_NOTES[chosen])
