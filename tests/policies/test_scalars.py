"""Numbers that the CPU wraps into tensors, and results that are as small."""

from __future__ import annotations

import pytest

from policies.applied import applied
from xmem.orchestration.scalars import DropWrappedNumbers
from xmem.testing.trace_builder import TraceBuilder


@pytest.mark.parametrize("name", ["aten::div_", "aten::mul", "aten::add"])
def test_a_number_and_its_cast_are_host_memory(name: str) -> None:
    trace = (
        TraceBuilder()
        .operator(name, 0, 50)
        .alloc(0x10, 8, 5)
        .operator(name, 6, 45)
        .operator("aten::to", 7, 20)
        .operator("aten::empty_strided", 8, 15)
        .alloc(0x20, 4, 10)
        .free(0x20, 30)
        .free(0x10, 48)
    )
    after, change = applied(DropWrappedNumbers(), trace)
    assert len(after) == 0
    assert (change.blocks_changed, change.bytes_changed) == (2, -12)


def test_a_result_of_one_element_is_a_block_on_both() -> None:
    trace = TraceBuilder().operator("aten::mul", 0, 50).alloc(0x10, 4, 5).free(0x10, 90)
    assert applied(DropWrappedNumbers(), trace)[1].blocks_changed == 0


@pytest.mark.parametrize(("name", "size"), [("aten::mul", 32), ("aten::sum", 4)])
def test_other_temporaries_are_not_numbers(name: str, size: int) -> None:
    trace = TraceBuilder().operator(name, 0, 50).alloc(0x10, size, 5).free(0x10, 40)
    assert applied(DropWrappedNumbers(), trace)[1].blocks_changed == 0
