"""``xmem-fast inspect``: show an intermediate table of the pipeline."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from xmem.cli import options, output
from xmem.cli.reading import reading
from xmem.cli.text_table import format_table


class InspectedTable(StrEnum):
    """The tables that can be shown."""

    EVENTS = "events"
    OPERATORS = "operators"
    BLOCKS = "blocks"
    SEQUENCE = "sequence"
    SEGMENTS = "segments"


def inspect(
    trace: options.Trace,
    table: Annotated[InspectedTable, typer.Argument(metavar="TABLE", help=" | ".join(InspectedTable))],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows to show.")] = 50,
    as_json: options.Json = False,
) -> None:
    """Show the first rows of a table: events, operators, blocks, sequence or segments."""
    import xmem
    from xmem.cli import inspected_tables as tables

    with reading(trace) as progress:
        read = xmem.read_trace(trace, progress=progress)
    shown = tables.first_rows(read, table.value, limit)
    if as_json:
        output.print_json(
            {"schema_version": 1, "table": table.value, "rows_total": shown.rows_total, "rows": shown.rows}
        )
        return
    if shown.rows:
        typer.echo(format_table(shown.rows))
    hidden = shown.rows_total - len(shown.rows)
    output.note(f"{shown.rows_total:,} rows" + (f", {hidden:,} not shown; raise --limit" if hidden else ""))
