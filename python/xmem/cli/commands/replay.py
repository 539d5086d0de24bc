"""``xmem-fast replay``: compare the simulator with a recording of a real GPU."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmem.cli import options, output
from xmem.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from xmem.snapshot.comparison import Comparison, DeviceComparison
    from xmem.snapshot.snapshot import Event


def replay(
    snapshot: Annotated[
        Path,
        typer.Argument(
            metavar="SNAPSHOT", help="Pickle of torch.cuda.memory._dump_snapshot.", show_default=False
        ),
    ],
    alloc_conf: Annotated[
        str | None,
        typer.Option(
            "--alloc-conf",
            metavar="STR",
            help="PYTORCH_CUDA_ALLOC_CONF of the recorded run; by default the settings in the file.",
        ),
    ] = None,
    torch_version: Annotated[
        str | None,
        typer.Option(
            "--torch",
            metavar="VERSION",
            help="PyTorch version of the recorded run; by default the rules of all versions are tried.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Replay a recorded GPU run and show where simulator and recording diverge.

    Exit status: 0 every event agrees, 1 they diverge, 2 usage, 3 bad input.
    """
    from xmem.snapshot.comparison import compare
    from xmem.snapshot.snapshot import read_snapshot

    comparison = compare(read_snapshot(snapshot), alloc_conf=alloc_conf, torch_version=torch_version)
    if as_json:
        output.print_json(_contract(comparison))
    else:
        from xmem.reports.terminal.comparison import render

        render(comparison, output.console())
    raise typer.Exit(ExitCode.DONE if comparison.agrees else ExitCode.DIFFERS)


def _contract(comparison: Comparison) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "path": comparison.path,
        "agrees": comparison.agrees,
        "alloc_conf": comparison.alloc_conf,
        "rules": asdict(comparison.rules),
        "rejected_rules": [asdict(rules) for rules in comparison.rejected],
        "devices": [_device(device) for device in comparison.devices],
    }


def _device(device: DeviceComparison) -> dict[str, Any]:
    difference = device.difference
    return {
        "device": device.device,
        "agrees": difference is None,
        "events": device.events,
        "agreed_events": device.agreed_events,
        "start_reserved_bytes": device.start_reserved_bytes,
        "peak_reserved_bytes": device.peak_reserved_bytes,
        "final_reserved_bytes": device.final_reserved_bytes,
        "difference": None
        if difference is None
        else {
            "event": difference.event,
            "recorded": _event(difference.recorded),
            "simulated": _event(difference.simulated),
            "around": [{"event": index, **_fields(event)} for index, event in device.around.items()],
        },
    }


def _event(event: Event | None) -> dict[str, Any] | None:
    return None if event is None else _fields(event)


def _fields(event: Event) -> dict[str, Any]:
    return {
        "action": event.action.name.lower(),
        "address": event.address,
        "size_bytes": event.size_bytes,
        "stream": event.stream,
    }
