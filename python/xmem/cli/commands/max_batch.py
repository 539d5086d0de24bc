"""``xmem-fast max-batch``: the largest batch, or other dimension, of a fitted model that fits a GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmem.cli import options, output
from xmem.cli.exit_codes import ExitCode
from xmem.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from xmem.devices.gpus import Device
    from xmem.scaling import Largest
    from xmem.scaling.largest import CurvePoint

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model file that xmem-fast fit wrote.", show_default=False)
]
Gpus = Annotated[
    list[str] | None,
    typer.Option("--gpu", metavar="NAME", help="GPU to fit on; may be repeated; all: every GPU known."),
]
Dimension = Annotated[
    str | None,
    typer.Option("--dim", metavar="NAME", help="Dimension to search; may be omitted if there is only one."),
]
Curve = Annotated[
    int,
    typer.Option(
        "--curve",
        metavar="POINTS",
        min=0,
        max=10_000,
        help="Also show the peak at this many values up to it.",
    ),
]


def max_batch(
    model: Model,
    gpu: Gpus = None,
    capacity: options.Capacity = None,
    dim: Dimension = None,
    at: options.At = None,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    cudnn: options.PlannedBy = None,
    curve: Curve = 0,
    as_json: options.Json = False,
) -> None:
    """Find the largest batch, or other dimension, that fits, by replay at every value that could be it.

    Exit status: 0 found, 1 not even 1 fits on any GPU, 2 usage, 3 bad input.
    """
    from xmem.files.model_archive import is_model_file
    from xmem.scaling import find_largest, parse_point, read_model
    from xmem.scaling.largest import curve_of

    question = options.question(None, None, alloc_conf, torch_version, cudnn)
    targets = _devices(gpu or [], capacity)
    if not is_model_file(model):
        raise TraceError("not a fitted model; make one with: xmem-fast fit", model)
    fitted = read_model(model)
    dimension = dim or _only_dimension(fitted.dimensions, at)
    point = parse_point(at) if at else {}
    found = [(device, find_largest(fitted, dimension, device, question, point)) for device in targets]
    best = max(largest.value for _, largest in found)
    points = curve_of(fitted, dimension, best, curve, question, point) if curve and best else []
    if as_json:
        output.print_json(_contract(model, found, points))
    else:
        from xmem.reports.terminal.scaling import render_largest

        render_largest(found, points, output.console())
    raise typer.Exit(ExitCode.DONE if best else ExitCode.DOES_NOT_FIT)


def _devices(names: list[str], capacity: str | None) -> list[Device]:
    from xmem.devices.gpus import asked_device, devices

    named = [device.slug for device in devices()] if names == ["all"] else names
    asked = [asked_device(name, capacity) for name in named] or [asked_device(None, capacity)]
    found = [device for device in asked if device is not None]
    if not found:
        raise ConfigError("no GPU was given", "pass --gpu NAME, --gpu all or --capacity SIZE")
    return found


def _only_dimension(dimensions: tuple[str, ...], at: str | None) -> str:
    from xmem.scaling import parse_point

    fixed = parse_point(at) if at else {}
    free = [name for name in dimensions if name not in fixed]
    if len(free) != 1:
        raise ConfigError(
            f"exactly one of the model's dimensions can be searched: {', '.join(dimensions)}",
            "name it with --dim NAME, and set the others with --at",
        )
    return free[0]


def _contract(model: str, found: list[tuple[Device, Largest]], curve: list[CurvePoint]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "path": model,
        "gpus": [
            {
                "gpu": device.slug or None,
                "name": device.name,
                "capacity_bytes": device.total_memory_bytes,
                **asdict(largest),
            }
            for device, largest in found
        ],
        "curve": [asdict(point) for point in curve],
    }
