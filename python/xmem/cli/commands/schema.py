"""``xmem-fast schema``: the JSON Schemas of what commands print with ``--json``."""

from __future__ import annotations

from typing import Annotated

import typer

from xmem.cli import output
from xmem.cli.text_table import format_table
from xmem.errors import ConfigError

Name = Annotated[
    str | None, typer.Argument(metavar="[COMMAND]", help="Print the schema of this one.", show_default=False)
]


def schema(name: Name = None) -> None:
    """List the JSON schemas of what commands print with --json, or print one."""
    from xmem.cli.json_outputs import names, output_schema, version_of

    if name is None:
        typer.echo(format_table([{"schema": each, "version": version_of(each)} for each in names()]))
        return
    if name not in names():
        raise ConfigError(f"there is no schema {name!r}", f"use one of {', '.join(names())}")
    output.print_json(output_schema(name))
