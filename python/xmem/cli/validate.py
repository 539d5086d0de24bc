"""``xmem-fast validate``: measurements of real GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from xmem.cli import options, output
from xmem.cli.text_table import format_table
from xmem.errors import ConfigError
from xmem.units import format_bytes

if TYPE_CHECKING:
    from xmem.validation import Measurement

Folder = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FOLDER]",
        help="Results of bench/gpu; by default those of this checkout.",
        show_default=False,
    ),
]


def validate(
    folder: Folder = None,
    as_list: Annotated[bool, typer.Option("--list", help="List the measurements that there are.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the measurements of real GPUs that estimates can be held against."""
    from xmem.validation import DEFAULT_FOLDER, load_measurements

    if not as_list:
        raise ConfigError("xmem-fast validate", "--list")
    measurements = load_measurements(DEFAULT_FOLDER if folder is None else folder)
    if as_json:
        listed = [_fields(measurement) for measurement in measurements]
        output.print_json({"schema_version": 1, "measurements": listed})
    elif measurements:
        typer.echo(format_table([_row(measurement) for measurement in measurements]))
    output.note(f"{len(measurements)} measurements")


def _fields(measurement: Measurement) -> dict[str, Any]:
    return {
        "key": measurement.key,
        "part": measurement.part,
        "config": dict(measurement.config),
        "environment": dict(measurement.environment),
        "outcome": measurement.outcome,
        "peak_allocated_bytes": getattr(measurement, "peak_allocated_bytes", None),
        "peak_reserved_bytes": getattr(measurement, "peak_reserved_bytes", None),
        "least_bytes": getattr(measurement, "least_bytes", None),
        "where": measurement.where,
    }


def _row(measurement: Measurement) -> dict[str, str]:
    reserved = getattr(measurement, "peak_reserved_bytes", None)
    least = getattr(measurement, "least_bytes", None)
    return {
        "part": measurement.part,
        "run": measurement.title,
        "GPU": measurement.environment["gpu"],
        "torch": measurement.environment["torch"],
        "outcome": measurement.outcome,
        "reserved": "" if reserved is None else format_bytes(reserved),
        "least": "" if least is None else format_bytes(least),
    }
