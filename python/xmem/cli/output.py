"""How a command says something: results on stdout, notes on stderr."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from xmem.cli.exit_codes import ExitCode
from xmem.errors import ConfigError
from xmem.files import naming, write_whole

if TYPE_CHECKING:
    from rich.console import Console

    from xmem.advice import Advised
    from xmem.estimate_result import Estimate
    from xmem.pipeline import Analysis
    from xmem.reports.schedulers import Scheduler


def note(message: str) -> None:
    """Tell the user, not the reader of the result."""
    typer.echo(f"xmem-fast: {message}", err=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    typer.echo(json.dumps(value, indent=2))


def console() -> Console:
    """Where reports go: stdout, whose closed end is an error that `main` handles as it does any other."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process with 1, which reads as "does not fit".
            raise BrokenPipeError

    return Output()


def require_one_format(as_json: bool, request: Scheduler | None) -> None:
    """Check before the work that the answer is asked for in one form.

    Raises:
        ConfigError: In two.
    """
    if as_json and request is not None:
        raise ConfigError(f"--json and --format {request} cannot be combined")


def require_places(files: Mapping[str, Path | None]) -> None:
    """Check before a script is captured, which may take long, that there is a place for its results.

    Args:
        files: By option, what it names; None where it was not given.

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
    request: Scheduler | None = None,
    upper: bool = False,
    explain: bool = False,
) -> None:
    """Print an estimate, write it and its page to files if asked to, and end the command with its verdict.

    Args:
        analysis: The answer and what it rests on.
        as_json: Print it as JSON.
        output: Where it is also written, as JSON.
        page: Where the page goes that shows what it rests on.
        with_advice: Whether the page has advice, which is replayed for it.
        request: Print instead what this scheduler is to be asked for.
        upper: Ask it for the upper bound of the interval, not for the estimate.
        explain: Also show what each policy changed; JSON always does.

    Raises:
        typer.Exit: Always; the status says whether the job fits.
        ConfigError: A file cannot be written; the estimate has been printed all the same.
    """
    from xmem.estimate_file import write_estimate

    estimate = analysis.estimate
    try:
        _print(estimate, as_json=as_json, explain=explain, request=request, upper=upper)
    finally:  # whoever reads the text may have seen enough; the files were asked for all the same
        if output is not None:
            with naming(f"-o {output}"):
                write_estimate(output, estimate)
        if page is not None:
            from xmem.reports.html import page_of

            text = page_of(analysis, advised=advice_for_page(analysis) if with_advice else None)
            with naming(f"--html {page}"):
                write_whole(page, text.encode())
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
        from xmem.reports.terminal import render

        render(estimate, console(), explain=explain)
        if estimate.fits is False and estimate.trace.path:
            note(f"what would save memory: {_advise_command(estimate)}")


def _advise_command(estimate: Estimate) -> str:
    """The command that tells what to change, for the same target."""
    target = estimate.target
    named = ["--gpu", target.gpu] if target.gpu else ["--capacity", str(target.capacity_bytes)]
    conf = ["--alloc-conf", target.alloc_conf] if target.alloc_conf else []
    return shlex.join(["xmem-fast", "advise", estimate.trace.path, *named, *conf])


def advice_for_page(analysis: Analysis) -> Advised:
    """What would save memory, sought no longer than a page is waited for."""
    from xmem.advice import PAGE_BUDGET_S, advise

    return advise(analysis, budget_s=PAGE_BUDGET_S)
