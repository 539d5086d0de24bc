"""``xmem-fast advise``: changes that would make a recorded job take less memory, replayed."""

from __future__ import annotations

from typing import Annotated

import typer

from xmem.cli import job, options, output
from xmem.cli.exit_codes import ExitCode

_Budget = Annotated[
    float,
    typer.Option(
        "--budget", metavar="SECONDS", min=0.0, help="Stop trying remedies after this long; list the rest."
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
    """Suggest changes to the script that would save memory, each one replayed.

    Exit status: 0 the job fits, as it is or with the advice, 1 it does not, 2 usage, 3 bad input.
    """
    from xmem.advice import advise as search
    from xmem.estimation.pipeline import answer

    question = options.question(gpu, capacity, alloc_conf, torch_version, cudnn)
    observed = job.observed(trace, at).what_if(*what_if or ())
    advised = search(answer(observed, question), budget_s=budget)
    if as_json:
        found = advised.to_json()
        output.print_json({"schema_version": found["schema_version"], "path": trace, **found})
    else:
        from xmem.reports.terminal.advice import render

        render(advised, output.console())
    raise typer.Exit(ExitCode.DOES_NOT_FIT if advised.can_fit is False else ExitCode.DONE)
