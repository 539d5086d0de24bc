"""Section 4 of docs/trace_model.md, a test a rule."""

from __future__ import annotations

from collections import Counter

from xmem.testing.reference.pairing import NEVER, Block, BlockFlag, pair, pairing_diagnostics
from xmem.testing.reference.trace import read
from xmem.testing.trace_builder import TraceBuilder


def paired(trace: TraceBuilder) -> tuple[list[Block], Counter[str]]:
    read_trace = read(trace.bytes())
    blocks = pair(read_trace)
    return blocks, pairing_diagnostics(read_trace, blocks)


def test_an_allocation_and_its_free_are_one_block() -> None:
    (block,), problems = paired(TraceBuilder().on(7).alloc(8, 512, 1).on(9).free(8, 3))
    assert block == Block(8, 512, 1000, 3000, 0, -1, 0, 0, 1, BlockFlag.NONE)
    assert not problems


def test_never_freed() -> None:
    (block,), _ = paired(TraceBuilder().alloc(8, 512, 1))
    assert (block.free_ns, block.free_event, block.flags) == (NEVER, -1, BlockFlag.NEVER_FREED)


def test_an_allocation_at_a_live_address_ends_the_old_block() -> None:
    (old, new), problems = paired(TraceBuilder().alloc(8, 512, 1).alloc(8, 64, 2))
    assert (old.free_ns, old.free_event, old.flags) == (2000, 1, BlockFlag.OVERWRITTEN)
    assert (new.alloc_ns, new.flags) == (2000, BlockFlag.NEVER_FREED)
    assert problems == {"missed_free": 1}


def test_a_free_of_an_unknown_address_was_born_before() -> None:
    trace = TraceBuilder().alloc(8, 1, 5).on(2).free(16, 7, size=64)
    (before, _), problems = paired(trace)
    assert before == Block(16, 64, 5000, 7000, 0, -1, 1, -1, 1, BlockFlag.BORN_BEFORE)
    assert problems == {"free_of_unknown_address": 1}


def test_blocks_born_before_come_first_in_order_of_their_free() -> None:
    trace = TraceBuilder().alloc(8, 1, 1).free(24, 2, size=3).alloc(16, 2, 3).free(32, 4, size=4)
    assert [block.size_bytes for block in paired(trace)[0]] == [3, 4, 1, 2]


def test_a_free_of_another_size_closes_the_block_as_allocated() -> None:
    (block,), problems = paired(TraceBuilder().alloc(8, 512, 1).free(8, 2, size=100))
    assert (block.size_bytes, block.free_ns) == (512, 2000)
    assert problems == {"free_size_mismatch": 1}


def test_devices_do_not_share_addresses() -> None:
    trace = TraceBuilder().alloc(8, 1, 1).alloc(8, 2, 2, device_type=1, device_index=0)
    trace.alloc(8, 3, 3, device_type=1, device_index=1).free(8, 4, device_type=1, device_index=0)
    blocks, problems = paired(trace)
    assert [block.free_ns for block in blocks] == [NEVER, 4000, NEVER]
    assert not problems


def test_events_of_zero_bytes_are_ignored() -> None:
    blocks, problems = paired(TraceBuilder().memory(0, 1, address=8))
    assert not blocks
    assert problems == {"empty_memory_event": 1}


def test_without_address_a_free_closes_the_youngest_of_its_size_and_device() -> None:
    trace = TraceBuilder().alloc(None, 64, 1).alloc(None, 64, 2).alloc(None, 32, 3).alloc(8, 64, 4)
    trace.alloc(None, 64, 5, device_type=1, device_index=0).free(None, 6, size=64).free(None, 7, size=16)
    blocks, problems = paired(trace)
    assert [(block.size_bytes, block.alloc_ns) for block in blocks if block.free_ns == 6000] == [(64, 2000)]
    assert problems == {"free_of_unknown_address": 1}


def test_at_one_time_the_order_of_events_decides() -> None:
    blocks, _ = paired(TraceBuilder().alloc(8, 64, 1).free(8, 1).alloc(8, 64, 1))
    assert [(block.alloc_ns, block.free_ns) for block in blocks] == [(1000, 1000), (1000, NEVER)]
