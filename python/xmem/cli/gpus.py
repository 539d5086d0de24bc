"""``xmem-fast gpus``: the GPUs that are known by name."""

from __future__ import annotations

from dataclasses import asdict

import typer

from xmem.cli import options, output
from xmem.cli.text_table import format_table
from xmem.devices import Device, devices
from xmem.units import format_bytes


def gpus(as_json: options.Json = False) -> None:
    """List the GPUs that --gpu knows; with --json also how each figure is known."""
    if as_json:
        known = [{**asdict(device), "usable_bytes": device.usable_bytes} for device in devices()]
        output.print_json({"schema_version": 1, "gpus": known})
    else:
        typer.echo(format_table([_row(device) for device in devices()]))
        output.note("memory is what CUDA reports; usable is without the CUDA context and its kernels")


def _row(device: Device) -> dict[str, str]:
    return {
        "name": device.slug,
        "GPU": device.name,
        "architecture": device.architecture,
        "memory": format_bytes(device.total_memory_bytes),
        "usable": format_bytes(device.usable_bytes),
    }
