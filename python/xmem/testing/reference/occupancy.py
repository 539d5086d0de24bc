"""Occupancy of one launch at a time: the readable twin of ``xmem.occupancy.calculator``.

It fills a multiprocessor block by block, and a GPU wave by wave, instead of dividing.
"""

from __future__ import annotations

from typing import Any

from xmem.records import dataclass


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes:
        threads: Threads per block.
        registers: Registers per thread.
        shared_bytes: Static and dynamic shared memory per block.
        blocks: Blocks of the grid.
    """

    threads: int
    registers: int
    shared_bytes: int
    blocks: int


@dataclass(frozen=True)
class Occupancy:
    """What ``xmem.occupancy.calculator`` says of one launch, by the same names."""

    active_blocks: int
    theoretical: float
    waves: float
    tail: float
    steady: float
    elapsed: float
    active: float


def active_blocks(limits: Any, launch: Launch) -> int:
    """Place blocks on an empty multiprocessor until one does not fit."""
    warps = -(-launch.threads // limits.warp_size)
    registers_of_warp = 0
    while registers_of_warp < launch.registers * limits.warp_size:
        registers_of_warp += limits.register_unit
    shared = 0
    while shared < launch.shared_bytes + limits.reserved_shared_bytes:
        shared += limits.shared_unit
    if launch.shared_bytes > limits.shared_bytes_opt_in:
        return 0
    most_in_a_partition = -(-warps // limits.sub_partitions)
    if most_in_a_partition * limits.sub_partitions * registers_of_warp > limits.registers_per_block:
        return 0

    placed = 0
    free_warps, free_shared, free_blocks = limits.warps, limits.shared_bytes, limits.blocks
    free_registers = [limits.registers // limits.sub_partitions] * limits.sub_partitions
    while free_warps >= warps and free_shared >= shared and free_blocks >= 1:
        after = list(free_registers)
        for _ in range(warps):
            roomiest = max(range(len(after)), key=after.__getitem__)
            after[roomiest] -= registers_of_warp
        if min(after) < 0:
            break
        free_registers = after
        free_warps -= warps
        free_shared -= shared
        free_blocks -= 1
        placed += 1
    return placed


def occupancy(limits: Any, multiprocessors: int, launch: Launch) -> Occupancy:
    """Run the grid wave by wave, one unit of time each, and average."""
    warps = -(-launch.threads // limits.warp_size)
    held = active_blocks(limits, launch)
    if held == 0:
        return Occupancy(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    left = max(launch.blocks, 1)
    resident: list[int] = []  # blocks, of each multiprocessor in each wave
    tail = 0.0
    while left > 0:
        wave = [0] * multiprocessors
        for slot in range(min(left, held * multiprocessors)):
            wave[slot % multiprocessors] += 1
        left -= sum(wave)
        tail = sum(wave) / (held * multiprocessors)
        resident += wave
    share = warps / limits.warps
    busy = [blocks for blocks in resident if blocks]
    return Occupancy(
        active_blocks=held,
        theoretical=held * share,
        waves=max(launch.blocks, 1) / (held * multiprocessors),
        tail=tail,
        steady=min(held, max(launch.blocks, 1) / multiprocessors) * share,
        elapsed=sum(resident) / len(resident) * share,
        active=sum(busy) / len(busy) * share,
    )
