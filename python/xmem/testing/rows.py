"""Columns of the core as rows of the reference: to compare the two, and to print what a test got.

The reference names its fields as the core names its columns. It makes one Python object per row, so it is for
small traces only.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from xmem.testing.reference.attribution import Attribution
from xmem.testing.reference.categories import Category, Phase
from xmem.testing.reference.pairing import Block, BlockFlag
from xmem.testing.reference.trace import KINDS, MemoryEvent, Span


def span_rows(trace: Any) -> list[Span]:
    """Return the rows of the EventTable of a core trace."""
    rows = _rows(trace.events, Span, without="row")
    return [_span(trace.names, row, number) for number, row in enumerate(rows)]


def _span(names: Any, row: dict[str, Any], number: int) -> Span:
    row["kind"] = KINDS[row["kind"]]
    row["name"] = names[row["name"]]
    row["input_types"] = names.json(row["input_types"])
    row["inputs"] = names.json(row["inputs"])
    return Span(**row, row=number)


def memory_rows(trace: Any) -> list[MemoryEvent]:
    """Return the rows of the MemoryTable of a core trace."""
    return [MemoryEvent(**row) for row in _rows(trace.memory, MemoryEvent)]


def block_rows(blocks: Any) -> list[Block]:
    """Return the rows of a BlockTable of the core."""
    return [Block(**{**row, "flags": BlockFlag(row["flags"])}) for row in _rows(blocks, Block)]


def attribution_rows(attribution: Any) -> list[Attribution]:
    """Return the rows of the attribution columns of the core."""
    return [_attribution(attribution, row) for row in _rows(attribution, Attribution)]


def _attribution(table: Any, row: dict[str, Any]) -> Attribution:
    module, line = row["module"], row["source_line"]
    row["module"] = None if module < 0 else table.modules[module]
    row["source_line"] = None if line < 0 else table.lines[line]
    row["host"] = bool(row["host"])
    row["phase"], row["free_phase"] = Phase(row["phase"]), Phase(row["free_phase"])
    row["category"] = Category(row["category"])
    return Attribution(**row)


def _rows(table: Any, row_type: type, without: str = "") -> list[dict[str, Any]]:
    names = [field.name for field in fields(row_type) if field.name != without]
    columns = [getattr(table, name).tolist() for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
