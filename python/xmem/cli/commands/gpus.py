"""``xmem-fast gpus``: the GPUs known by name, and everything known about one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from xmem.cli import options, output
from xmem.cli.text_table import format_table
from xmem.devices.gpus import Device, describe_device, devices, find_device
from xmem.text.units import format_bytes

_ATTRIBUTE_FIELDS = ("attributes", "attribute_bases")

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", help="Describe this GPU, as the file that --gpu takes.", show_default=False
    ),
]


def gpus(name: Name = None, as_json: options.Json = False) -> None:
    """List the GPUs that --gpu knows, or describe one; with --json also the source of each figure."""
    if name is not None:
        _describe(find_device(name), as_json)
    elif as_json:
        output.print_json({"schema_version": 1, "gpus": [_fields(device) for device in devices()]})
    else:
        typer.echo(format_table([_row(device) for device in devices()]))
        output.note("memory is what CUDA reports; usable is without the CUDA context and its kernels")


def _describe(device: Device, as_json: bool) -> None:
    if not as_json:
        typer.echo(describe_device(device), nl=False)
        return
    attributes = {
        name: {"value": value, "basis": device.attribute_bases[name]}
        for name, value in device.attributes.items()
    }
    output.print_json({"schema_version": 1, "gpu": {**_fields(device), "attributes": attributes}})


def _fields(device: Device) -> dict[str, object]:
    """Return all fields except the CUDA attributes, of which there are about a hundred."""
    fields = {name: value for name, value in asdict(device).items() if name not in _ATTRIBUTE_FIELDS}
    return {**fields, "usable_bytes": device.usable_bytes}


def _row(device: Device) -> dict[str, str]:
    return {
        "name": device.slug,
        "GPU": device.name,
        "architecture": device.architecture,
        "memory": format_bytes(device.total_memory_bytes),
        "usable": format_bytes(device.usable_bytes),
    }
