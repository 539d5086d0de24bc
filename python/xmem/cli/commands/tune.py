"""``xmem-fast tune``: the allocator settings that minimize the memory of a recorded job."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from xmem.cli import job, options, output
from xmem.cli.exit_codes import ExitCode
from xmem.errors import ConfigError, TraceError
from xmem.text.units import format_bytes

if TYPE_CHECKING:
    from xmem.advice.tuning import Tuning
    from xmem.estimation.analysis import Stages

_CLOSE = 0.03  # of what PyTorch's allocator counted


def tune(
    trace: options.Trace,
    at: options.At = None,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    torch_version: options.TorchVersion = None,
    cudnn: options.PlannedBy = None,
    as_json: options.Json = False,
) -> None:
    """Search for the PYTORCH_CUDA_ALLOC_CONF that minimizes the memory of a recorded job.

    Exit status: 0 the job fits with the best settings, 1 with none, 2 usage, 3 bad input.
    """
    from xmem.advice.tuning import search
    from xmem.estimation.pipeline import run_stages
    from xmem.estimation.warm_start import least_requests

    question = options.question(gpu, capacity, None, torch_version, cudnn)
    if question.device is None:
        raise ConfigError("no GPU was given", "pass --gpu NAME or --capacity SIZE to tune for")
    stages = run_stages(job.observed(trace, at), question)
    _require_a_beginning(stages)
    _require_settings(stages)
    searched = partial(
        search,
        device=question.device,
        torch_version=stages.settings.torch_version,
        outside_bytes=stages.unreplayed.outside_bytes,
        settings_of=stages.settings.settings_of,
        sizes_with_slack=stages.settings.sizes_with_slack,
    )
    possible = None
    if stages.warm is None:
        tuning = searched(stages.requests)
    else:
        start, workload = stages.warm.start, stages.workload
        tuning = searched(start.most(workload), unsplit=start.most(workload, finest=False))
        possible = searched(least_requests(stages.workload))
    if as_json:
        output.print_json(_contract(tuning, possible, trace))
    else:
        from xmem.reports.terminal.tuning import render

        render(tuning, output.console(), possible)
    raise typer.Exit(ExitCode.DONE if tuning.fitting or tuning.defaults.fits else ExitCode.DOES_NOT_FIT)


def _require_a_beginning(stages: Stages) -> None:
    """Refuse a run whose replay is far from what PyTorch's allocator reserved: savings would be imagined.

    Raises:
        TraceError: The trace begins in the middle of the run, and what was there before cannot be placed.
    """
    advice = (
        "record from the start of the process, or use: xmem-fast capture -o trace.json.gz -- python train.py"
    )
    if stages.warm is not None:
        if not stages.warm.agrees:
            raise TraceError(f"{stages.warm.why_not}; {advice}", stages.trace.path)
        return
    counted = stages.unreplayed.allocator
    if abs(counted.seen_bytes - counted.instead_of_bytes) <= _CLOSE * counted.seen_bytes:
        return
    raise TraceError(
        f"PyTorch's allocator had reserved {format_bytes(counted.seen_bytes)} while this trace was recorded, "
        f"but its requests alone lead to {format_bytes(counted.instead_of_bytes)}: the trace begins in the "
        f"middle of the run, so it does not show what other settings would change; {advice}",
        stages.trace.path,
    )


def _require_settings(stages: Stages) -> None:
    """Refuse a trace of a PyTorch that had other settings, unless the user names the one that runs the job.

    Raises:
        TraceError: It is such a trace.
    """
    why = stages.settings.why_none_to_try(stages.trace)
    if why is not None:
        raise TraceError(why, stages.trace.path)


def _contract(tuning: Tuning, possible: Tuning | None, trace: str) -> dict[str, Any]:
    best = tuning.best
    return {
        "schema_version": 1,
        "path": trace,
        "gpu": tuning.device.slug or None,
        "capacity_bytes": tuning.device.total_memory_bytes,
        "context_bytes": tuning.device.context_bytes,
        "torch_version": tuning.torch_version,
        "candidates": tuning.candidates,
        "fitting": tuning.fitting,
        "environment_line": None if best is None else best.environment_line,
        "saved_peak_bytes": tuning.saved_peak_bytes,
        "saved_capacity_bytes": tuning.saved_capacity_bytes,
        "defaults": asdict(tuning.defaults),
        "best": None if best is None else asdict(best),
        "ranked": [asdict(outcome) for outcome in tuning.ranked],
        "possible": None
        if possible is None
        else {
            "defaults": asdict(possible.defaults),
            "best": None if possible.best is None else asdict(possible.best),
            "saved_peak_bytes": possible.saved_peak_bytes,
        },
    }
