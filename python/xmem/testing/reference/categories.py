"""The purpose of each block: `docs/trace_model.md`, section 6."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from xmem.records import dataclass
from xmem.testing.reference.pairing import Block, BlockFlag


class Phase(IntEnum):
    """Phases of the training loop. Values of the columns `phase` and `free_phase`."""

    OTHER = 0
    LOAD = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER_STEP = 4
    ZERO_GRAD = 5


class Category(IntEnum):
    """Purposes of a block. Values of the column `category`."""

    UNKNOWN = 0
    PARAMETER = 1
    BUFFER = 2
    GRADIENT = 3
    OPTIMIZER_STATE = 4
    INPUT = 5
    ACTIVATION = 6
    WORKSPACE = 7
    TEMPORARY = 8


ROLES = {
    "parameter": Category.PARAMETER,
    "buffer": Category.BUFFER,
    "optimizer_state": Category.OPTIMIZER_STATE,
    "gradient": Category.GRADIENT,
    "input": Category.INPUT,
}
"""Roles that the capture gives, strongest first."""


@dataclass(frozen=True)
class Lifetime:
    """The birth and end of a block, in terms of the training loop."""

    phase: Phase
    iteration: int
    free_phase: Phase
    free_iteration: int
    freed_in_own_step: bool = False


def category(block: Block, lifetime: Lifetime, metadata: Mapping[str, Any] | None) -> Category:
    """Return the category by the first rule that applies."""
    named = named_by_capture(block, metadata)
    if named is not None:
        return named
    if BlockFlag.BORN_BEFORE in block.flags:
        return Category.UNKNOWN
    never_freed = BlockFlag.NEVER_FREED in block.flags
    freed_in_phase = None if never_freed else lifetime.free_phase
    same_iteration = lifetime.free_iteration == lifetime.iteration

    if lifetime.phase in (Phase.OTHER, Phase.LOAD):
        kept = freed_in_phase != lifetime.phase
        return Category.INPUT if kept else Category.TEMPORARY
    if lifetime.phase == Phase.OPTIMIZER_STEP:
        freed_later = not same_iteration and not lifetime.freed_in_own_step
        return Category.OPTIMIZER_STATE if never_freed or freed_later else Category.TEMPORARY
    if lifetime.phase == Phase.BACKWARD:
        used_up = freed_in_phase == Phase.BACKWARD and same_iteration
        return Category.TEMPORARY if used_up else Category.GRADIENT
    if lifetime.phase == Phase.FORWARD:
        used_up = freed_in_phase in (Phase.FORWARD, Phase.OTHER) and same_iteration
        return Category.TEMPORARY if used_up else Category.ACTIVATION
    return Category.TEMPORARY


def named_by_capture(block: Block, metadata: Mapping[str, Any] | None) -> Category | None:
    """Return the strongest role among the rows of `tensors` that name this block; None if there is none."""
    if metadata is None or block.address < 0:
        return None
    if (block.device_type != 0) != (metadata.get("mode") == "phantom"):
        return None
    tensors = metadata.get("tensors", {"role": [], "address": [], "time_ns": []})
    roles = {
        role
        for role, address, time_ns in zip(
            tensors["role"], tensors["address"], tensors["time_ns"], strict=True
        )
        if address == block.address and block.alloc_ns <= time_ns < block.free_ns
    }
    return next((category for role, category in ROLES.items() if role in roles), None)
