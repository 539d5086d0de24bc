"""Output of commands: results on stdout, notes on stderr."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from xmem.cli.exit_codes import ExitCode
from xmem.errors import ConfigError
from xmem.files.writing import naming, writing
from xmem.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from xmem.estimation.analysis import Analysis
    from xmem.estimation.estimate import Estimate
    from xmem.reports.schedulers import Scheduler


def note(message: str) -> None:
    """Print a note for the user, apart from the result."""
    typer.echo(f"xmem-fast: {printable(message)}", err=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    typer.echo(json.dumps(value, indent=2))


def console() -> Console:
    """Return the console for reports: stdout, where a closed pipe is an error that `main` handles."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process with 1, which reads as "does not fit".
            raise BrokenPipeError

    return Output()


def require_one_format(as_json: bool, request: Scheduler | None) -> None:
    """Check up front that only one output format is requested.

    Raises:
        ConfigError: Two are requested.
    """
    if as_json and request is not None:
        raise ConfigError(f"--json and --format {request} cannot be combined")


def require_places(files: Mapping[str, Path | None]) -> None:
    """Check that results can be written, before a capture that may take long.

    Args:
        files: File that each option names; None for an option that was not given.

    Raises:
        ConfigError: A folder is missing, or in the way.
    """
    for option, file in files.items():
        if file is None:
            continue
        if file.is_dir():
            raise ConfigError(f"{option} {file} is a directory", "name a file")
        if not file.parent.is_dir():
            raise ConfigError(
                f"{option} {file} cannot be written: there is no folder {file.parent}",
                "create it, or name another file",
            )


def give_analysis(
    analysis: Analysis,
    *,
    as_json: bool,
    output: Path | None,
    page: Path | None,
    with_advice: bool = True,
    with_source: bool = True,
    request: Scheduler | None = None,
    upper: bool = False,
    explain: bool = False,
) -> None:
    """Print an estimate, write it and its page to files if asked to, and end the command with its verdict.

    Args:
        analysis: The answer and the data behind it.
        as_json: Print it as JSON.
        output: File to write it to as well, as JSON.
        page: File for the page that shows the data behind it.
        with_advice: Whether the page has advice, which is replayed for it.
        with_source: Whether the page shows the text of source lines.
        request: Print the request for this scheduler instead.
        upper: Request the upper bound of the interval, not the estimate.
        explain: Also show what each policy changed; JSON always does.

    Raises:
        typer.Exit: Always; the status says whether the job fits.
        ConfigError: A file cannot be written; the estimate has been printed nevertheless.
    """
    from xmem.estimation.estimate_file import write_estimate

    estimate = analysis.estimate
    try:
        _print(estimate, as_json=as_json, explain=explain, request=request, upper=upper)
    finally:  # the reader of the text may stop early; the files were requested nevertheless
        if output is not None:
            with naming(f"-o {output}"):
                write_estimate(output, estimate)
        if page is not None:
            from xmem.reports.formats import HTML, Wanted

            with naming(f"--html {page}"), writing(page) as out:
                HTML.written(analysis, out, Wanted(with_advice=with_advice, with_source=with_source))
            note(f"{page}: a page to open in a browser")
    raise typer.Exit(ExitCode.DOES_NOT_FIT if estimate.fits is False else ExitCode.DONE)


def _print(
    estimate: Estimate, *, as_json: bool, explain: bool, request: Scheduler | None, upper: bool
) -> None:
    if as_json:
        print_json(estimate.to_json())
    elif request is not None:
        from xmem.reports import schedulers

        typer.echo(schedulers.render(estimate, request, upper=upper))
    else:
        from xmem.reports.terminal.summary import render

        render(estimate, console(), explain=explain)
        if estimate.fits is False and estimate.trace.path:
            note(f"what would save memory: {_advise_command(estimate)}")


def _advise_command(estimate: Estimate) -> str:
    """Return the command that suggests changes, for the same target."""
    target = estimate.target
    named = ["--gpu", target.gpu] if target.gpu else ["--capacity", str(target.capacity_bytes)]
    conf = ["--alloc-conf", target.alloc_conf] if target.alloc_conf else []
    return shlex.join(["xmem-fast", "advise", estimate.trace.path, *named, *conf])
