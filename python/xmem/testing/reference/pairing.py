"""From memory events to blocks: `docs/trace_model.md`, section 4."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import IntFlag

from xmem.testing.reference.trace import INT64_MAX, NONE, MemoryEvent, ReferenceTrace

NEVER = INT64_MAX


class BlockFlag(IntFlag):
    """Bits of the column `flags`."""

    NONE = 0
    BORN_BEFORE = 1
    NEVER_FREED = 2
    OVERWRITTEN = 4


@dataclass
class Block:
    """A row of the BlockTable; `alloc_event` and `free_event` are rows of the MemoryTable, -1 for none."""

    address: int
    size_bytes: int
    alloc_ns: int
    free_ns: int
    device_type: int
    device_index: int
    thread: int
    alloc_event: int
    free_event: int
    flags: BlockFlag

    @property
    def is_live(self) -> bool:
        """Whether no event has ended the block."""
        return BlockFlag.NEVER_FREED in self.flags

    @property
    def device(self) -> tuple[int, int]:
        """Type and index: pairing never crosses devices."""
        return self.device_type, self.device_index


def pair(trace: ReferenceTrace) -> list[Block]:
    """Return the blocks of a trace, in order of allocation; those born before it first, in order of their
    free."""
    blocks: list[Block] = []
    for row, event in enumerate(trace.memory):
        if event.bytes > 0:
            overwritten = live_at(blocks, event)
            if overwritten is not None:
                _end(overwritten, row, event)
                overwritten.flags |= BlockFlag.OVERWRITTEN
            blocks.append(_allocated(row, event))
        elif event.bytes < 0:
            freed = live_at(blocks, event) if event.address != NONE else live_without_address(blocks, event)
            if freed is not None:
                _end(freed, row, event)
            else:
                blocks.append(_born_before(row, event, trace.memory[0].time_ns))
    return sorted(
        blocks, key=lambda block: (block.alloc_event, block.free_event if block.alloc_event == NONE else 0)
    )


def live_at(blocks: list[Block], event: MemoryEvent) -> Block | None:
    """Return the live block at the event's address on its device; None for an event without address."""
    found = [
        block
        for block in blocks
        if block.is_live and block.device == event.device and block.address == event.address != NONE
    ]
    return found[0] if found else None


def live_without_address(blocks: list[Block], free: MemoryEvent) -> Block | None:
    """Return the youngest live block without address that has the size and the device of the free."""
    found = [
        block
        for block in blocks
        if block.is_live
        and block.device == free.device
        and block.address == NONE
        and block.size_bytes == -free.bytes
    ]
    return found[-1] if found else None


def _allocated(row: int, event: MemoryEvent) -> Block:
    return Block(
        address=event.address,
        size_bytes=event.bytes,
        alloc_ns=event.time_ns,
        free_ns=NEVER,
        device_type=event.device_type,
        device_index=event.device_index,
        thread=event.thread,
        alloc_event=row,
        free_event=NONE,
        flags=BlockFlag.NEVER_FREED,
    )


def _born_before(row: int, free: MemoryEvent, first_ns: int) -> Block:
    return Block(
        address=free.address,
        size_bytes=-free.bytes,
        alloc_ns=first_ns,
        free_ns=free.time_ns,
        device_type=free.device_type,
        device_index=free.device_index,
        thread=free.thread,
        alloc_event=NONE,
        free_event=row,
        flags=BlockFlag.BORN_BEFORE,
    )


def _end(block: Block, row: int, event: MemoryEvent) -> None:
    block.free_ns = event.time_ns
    block.free_event = row
    block.flags &= ~BlockFlag.NEVER_FREED


def pairing_diagnostics(trace: ReferenceTrace, blocks: list[Block]) -> Counter[str]:
    """Count what pairing found wrong, by kind: all of it can be seen in the result."""
    mismatched = [
        block
        for block in blocks
        if block.alloc_event != NONE
        and block.free_event != NONE
        and trace.memory[block.free_event].bytes < 0
        and trace.memory[block.free_event].bytes != -block.size_bytes
    ]
    return +Counter(
        empty_memory_event=sum(event.bytes == 0 for event in trace.memory),
        missed_free=sum(BlockFlag.OVERWRITTEN in block.flags for block in blocks),
        free_of_unknown_address=sum(BlockFlag.BORN_BEFORE in block.flags for block in blocks),
        free_size_mismatch=len(mismatched),
    )
