"""Each file beside this one is a tiny trace with what a person expects of it.

`BLOCKS` has a line a block; `WHERE` and `WHEN` have the columns of its attribution. `-` is none.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import xmem
from xmem.testing import rows
from xmem.testing.reference import attribution, pairing, trace
from xmem.testing.reference.attribution import Attribution
from xmem.testing.reference.pairing import NEVER, Block, BlockFlag
from xmem.testing.reference.trace import Span
from xmem.testing.trace_builder import Format, TraceBuilder

Table = list[dict[str, str]]

golden = pytest.mark.parametrize(
    "name",
    sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("test_")),
)


def load(name: str) -> tuple[TraceBuilder, Table, Table]:
    """The trace, the expected blocks, and the expected attribution."""
    module: dict[str, Any] = runpy.run_path(str(Path(__file__).parent / f"{name}.py"))
    where_and_when = zip(table(module["WHERE"]), table(module["WHEN"]), strict=True)
    return module["TRACE"], table(module["BLOCKS"]), [where | when for where, when in where_and_when]


def table(text: str) -> Table:
    header, *lines = text.strip().splitlines()
    return [dict(zip(header.split(), line.split(), strict=True)) for line in lines]


def block_table(blocks: list[Block]) -> Table:
    return [
        {
            "address": hex(block.address),
            "size_bytes": str(block.size_bytes),
            "alloc_us": str(block.alloc_ns // 1000),
            "free_us": "-" if block.free_ns == NEVER else str(block.free_ns // 1000),
            "device": f"{block.device_type}:{block.device_index}",
            "alloc_event": number(block.alloc_event),
            "free_event": number(block.free_event),
            "flags": "|".join(flag.name.lower() for flag in BlockFlag if flag in block.flags and flag.name)
            or "-",
        }
        for block in blocks
    ]


def attribution_table(spans: list[Span], found: list[Attribution]) -> Table:
    def span(row: int) -> str:
        return "-" if row < 0 else spans[row].name

    return [
        {
            "operator": span(row.operator),
            "root_operator": span(row.root_operator),
            "phase": row.phase.name.lower(),
            "iteration": number(row.iteration),
            "forward_link": span(row.forward_link),
            "module": row.module or "-",
            "source_line": row.source_line or "-",
            "free_phase": row.free_phase.name.lower(),
            "free_iteration": number(row.free_iteration),
            "category": row.category.name.lower(),
        }
        for row in found
    ]


def number(value: int) -> str:
    return "-" if value < 0 else str(value)


@golden
def test_reference(name: str) -> None:
    builder, expected_blocks, expected_attribution = load(name)
    read = trace.read(builder.bytes())
    blocks = pairing.pair(read)
    found = attribution.attribute(read, blocks, read.metadata)
    assert block_table(blocks) == expected_blocks
    assert attribution_table(read.spans, found) == expected_attribution


@pytest.mark.skipif(not hasattr(xmem, "read_trace"), reason="the core is not built here")
@pytest.mark.parametrize("format", ["torch213", "compact"])
@golden
def test_core(name: str, format: Format) -> None:
    builder, expected_blocks, expected_attribution = load(name)
    read = xmem.read_trace(builder.bytes(format))
    blocks = xmem.pair_blocks(read)
    found = xmem.attribute(read, blocks)
    assert block_table(rows.block_rows(blocks)) == expected_blocks
    assert attribution_table(rows.span_rows(read), rows.attribution_rows(found)) == expected_attribution
