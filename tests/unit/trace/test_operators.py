"""The index of a trace's operators: what encloses what, at any depth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import xmem
from xmem.run.operators import OperatorIndex
from xmem.testing import strategies
from xmem.testing.trace_builder import TraceBuilder


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_innermost_wanted_operator_is_the_first_on_the_way_up(data: st.DataObject) -> None:
    trace = xmem.read_trace(data.draw(strategies.builders(strategies.crossing_events())).bytes("compact"))
    operators = OperatorIndex(trace)
    count = len(trace.events)
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)

    def walk(row: int) -> int:
        while row >= 0 and not wanted[row]:
            row = int(operators.parent[row])
        return row

    rows = np.arange(-1, count, dtype=np.int32)
    assert operators.enclosing(rows, wanted).tolist() == [walk(row) for row in rows.tolist()]


def nested(kind: str, levels: int) -> TraceBuilder:
    """Spans inside each other, each with a block of its own."""
    builder = TraceBuilder()
    for level in range(levels):
        name = f"M_{level}"
        add = {"operators": builder.operator, "modules": builder.module_frame}[kind]
        add("aten::mul" if kind == "operators" else name, 2 * level, 4 * levels - level)
        builder.alloc(0x1000 + 64 * level, 64, at_us=2 * level + 1)
    return builder


def test_the_path_of_deep_modules_keeps_its_ends() -> None:
    trace = xmem.read_trace(nested("modules", 120).bytes())
    found = xmem.attribute(trace, xmem.pair_blocks(trace))
    path = found.modules[int(found.module[-1])].split(".")
    assert path[:50] == [f"M_{level}" for level in range(50)]
    assert ".".join(path[50:-50]) == "..."
    assert path[-50:] == [f"M_{level}" for level in range(70, 120)]


@pytest.mark.parametrize("kind", ["operators", "modules"])
def test_a_trace_nested_deeper_than_any_profiler_writes_is_refused(kind: str) -> None:
    with pytest.raises(xmem.TraceError, match="more than 10000 levels deep"):
        xmem.estimate(nested(kind, 10_001).bytes(), gpu="rtx-3090")
