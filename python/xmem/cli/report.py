"""``xmem-fast report``: the predicted run in the format of another tool."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from xmem.cli import job, options, output
from xmem.cli.exit_codes import ExitCode
from xmem.units import format_bytes

# A GPU that nothing runs out of, and whose addresses a viewer in JavaScript still reads exactly.
_ROOMY_BYTES = 1 << 40


class FormatName(StrEnum):
    """The formats that can be written."""

    MEMORY_VIZ = "memory_viz"


def report(
    trace: options.Trace,
    file: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the report goes.")],
    format_name: Annotated[
        FormatName, typer.Option("--format", help="memory_viz: a snapshot for pytorch.org/memory_viz.")
    ] = FormatName.MEMORY_VIZ,
    at: options.At = None,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    cudnn: options.PlannedBy = None,
    as_json: options.Json = False,
) -> None:
    """Write the predicted run as a memory snapshot that PyTorch's viewer opens.

    With a GPU the run ends where it would run out of memory. Exit status: 0 done, 1 it does not fit.
    """
    from xmem.alloc_conf import parse as parse_alloc_conf
    from xmem.devices import custom_device, find_device
    from xmem.memory_viz import frames_of, snapshot_of, write_snapshot
    from xmem.pipeline import conclude, run_stages
    from xmem.simulation import replay

    target = options.target_options(gpu, capacity, alloc_conf, torch_version, cudnn)
    device = None if gpu is None else find_device(gpu)
    if target["capacity"] is not None:
        device = custom_device(target["capacity"], like=device)
    stages = run_stages(
        job.observed(trace, at), device=device, alloc_conf=alloc_conf, torch_version=torch_version
    )
    estimate = conclude(stages, device=device, alloc_conf=alloc_conf, torch_version=torch_version).estimate
    replayed = replay(
        stages.requests,
        options=parse_alloc_conf(alloc_conf or "", estimate.target.torch_version),
        capacity_bytes=_ROOMY_BYTES if device is None else device.total_memory_bytes,
        other_bytes=0 if device is None else device.context_bytes,
    )
    snapshot = snapshot_of(
        stages.requests,
        replayed,
        frames_of(stages.trace, stages.attribution, stages.workload),
        alloc_conf or "",
    )
    write_snapshot(snapshot, file)
    events = len(snapshot["device_traces"][0])
    if as_json:
        output.print_json(
            {
                "schema_version": 1,
                "path": str(file),
                "format": format_name.value,
                "events": events,
                "peak_reserved_bytes": replayed.peak_reserved.bytes,
                "fits": None if device is None else replayed.oom is None,
                "torch_version": estimate.target.torch_version,
            }
        )
    else:
        ends = "" if replayed.oom is None else ", ends out of memory"
        peak = format_bytes(replayed.peak_reserved.bytes)
        typer.echo(f"{file}: {events:,} events, {peak} reserved at the peak{ends}")
        output.note("open it at https://pytorch.org/memory_viz or with python -m torch.cuda._memory_viz")
    raise typer.Exit(ExitCode.DONE if replayed.oom is None else ExitCode.DOES_NOT_FIT)
