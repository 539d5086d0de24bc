"""``xmem-fast advise``: what would make a recorded job take less memory, replayed."""

from __future__ import annotations

from typing import Annotated

import typer

from xmem.cli import job, options, output
from xmem.cli.exit_codes import ExitCode

_Budget = Annotated[
    float,
    typer.Option(
        "--budget", metavar="SECONDS", min=0.0, help="Try no other remedy after this long; the rest is named."
    ),
]


def advise(
    trace: options.Trace,
    at: options.At = None,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    cudnn: options.PlannedBy = None,
    what_if: options.WhatIfs = None,
    budget: _Budget = 10.0,
    as_json: options.Json = False,
) -> None:
    """Say which changes of the script would save memory, each one replayed.

    Exit status: 0 the job fits, as it is or with the advice, 1 it does not, 2 usage, 3 bad input.
    """
    from xmem.advice import advise as search
    from xmem.pipeline import analyze

    target = options.target_options(gpu, capacity, alloc_conf, torch_version, cudnn)
    advised = search(analyze(job.observed(trace, at), what_if=what_if or (), **target), budget_s=budget)
    if as_json:
        found = advised.to_json()
        output.print_json({"schema_version": found["schema_version"], "path": trace, **found})
    else:
        from xmem.reports.advice import render

        render(advised, output.console())
    raise typer.Exit(ExitCode.DOES_NOT_FIT if advised.can_fit is False else ExitCode.DONE)
