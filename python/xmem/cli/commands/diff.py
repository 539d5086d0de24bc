"""``xmem-fast diff``: what changed from one run to another, and which part of the script caused it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmem.cli import job, options, output
from xmem.cli.exit_codes import ExitCode
from xmem.errors import ConfigError
from xmem.files.writing import naming, write_whole

if TYPE_CHECKING:
    from xmem.difference import Difference
    from xmem.estimation.analysis import Analysis
    from xmem.estimation.question import Question


_Before = Annotated[
    str,
    typer.Argument(
        metavar="A", help="The run before: a trace, or an estimate (estimate -o).", show_default=False
    ),
]
_After = Annotated[str, typer.Argument(metavar="B", help="The run after, likewise.", show_default=False)]
_Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write the comparison as one offline page.")
]
_FailOnGrowth = Annotated[
    str | None,
    typer.Option(
        "--fail-on-growth",
        metavar="SIZE|PERCENT",
        help="Exit with 1 where the device peak grew by more, such as 256MiB or 5%.",
    ),
]


def diff(
    before: _Before,
    after: _After,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    cudnn: options.PlannedBy = None,
    fail_on_growth: _FailOnGrowth = None,
    html: _Html = None,
    as_json: options.Json = False,
) -> None:
    """Compare two runs: by how much the peak changed, and which module, line and kind of memory caused it.

    Target options apply to traces; an estimate keeps the target that it was made for. Exit status: 0
    compared, 1 grew by more than --fail-on-growth, 2 usage, 3 bad input.
    """
    from xmem.difference import difference
    from xmem.gate.limits import parse_growth

    if before == after == "-":
        raise ConfigError("- cannot be used for both runs", "read at most one from standard input")
    limit = None if fail_on_growth is None else parse_growth(fail_on_growth)
    question = options.question(gpu, capacity, alloc_conf, torch_version, cudnn)
    estimates = [job.estimate_in(source) for source in (before, after)]
    if None not in estimates and any(
        given is not None for given in (gpu, capacity, alloc_conf, torch_version)
    ):
        raise ConfigError(
            "two estimates cannot be compared for a different target: each already has its own",
            "pass the traces that they were made from",
        )
    sides = [
        _analyze(source, question) if estimate is None else estimate
        for source, estimate in zip((before, after), estimates, strict=True)
    ]
    compared = difference(*sides)
    try:
        if as_json:
            output.print_json(compared.to_json())
        else:
            from xmem.reports.difference.terminal import render

            render(compared, output.console())
    finally:  # as for an estimate: a reader who closes the pipe early still wants the page
        if html is not None:
            _write_html(compared, html, before, after)
    device = compared.size("device_peak")
    if limit is not None and device.change_bytes > limit.allowed_bytes(device.before_bytes):
        output.note(f"the device peak grew by more than {limit}")
        raise typer.Exit(ExitCode.GREW)


def _analyze(source: str, question: Question) -> Analysis:
    from xmem.estimation.pipeline import answer

    return answer(job.observed(source, None), question)


def _write_html(compared: Difference, path: Path, before: str, after: str) -> None:
    from xmem.reports.difference.page import page_of

    with naming(f"--html {path}"):
        page = page_of(compared, before=before, after=after)
        write_whole(path, page.encode("utf-8", "replace"))  # names of files need not be UTF-8
