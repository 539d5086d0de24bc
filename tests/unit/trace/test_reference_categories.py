"""Section 6 of docs/trace_model.md, a line of the table a rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from xmem.testing.reference.categories import Category, Lifetime, Phase, category
from xmem.testing.reference.pairing import NEVER, Block, BlockFlag

FREED = Block(0x1000, 512, 1000, 9000, 0, -1, 0, 0, 1, BlockFlag.NONE)
KEPT = replace(FREED, free_ns=NEVER, free_event=-1, flags=BlockFlag.NEVER_FREED)

OTHER, LOAD, FORWARD, BACKWARD, STEP, ZERO_GRAD = Phase


@pytest.mark.parametrize(
    ("phase", "freed_in", "iterations_later", "expected"),
    [
        (OTHER, OTHER, 0, Category.TEMPORARY),
        (OTHER, FORWARD, 0, Category.INPUT),
        (OTHER, None, 0, Category.INPUT),
        (LOAD, LOAD, 1, Category.TEMPORARY),
        (LOAD, OTHER, 0, Category.INPUT),
        (STEP, STEP, 0, Category.TEMPORARY),
        (STEP, OTHER, 0, Category.TEMPORARY),
        (STEP, STEP, 1, Category.OPTIMIZER_STATE),
        (STEP, None, 0, Category.OPTIMIZER_STATE),
        (BACKWARD, BACKWARD, 0, Category.TEMPORARY),
        (BACKWARD, BACKWARD, 1, Category.GRADIENT),
        (BACKWARD, ZERO_GRAD, 0, Category.GRADIENT),
        (BACKWARD, None, 0, Category.GRADIENT),
        (FORWARD, FORWARD, 0, Category.TEMPORARY),
        (FORWARD, OTHER, 0, Category.TEMPORARY),
        (FORWARD, FORWARD, 1, Category.ACTIVATION),
        (FORWARD, BACKWARD, 0, Category.ACTIVATION),
        (FORWARD, None, 0, Category.ACTIVATION),
        (ZERO_GRAD, None, 0, Category.TEMPORARY),
    ],
)
def test_inferred_from_birth_and_end(
    phase: Phase, freed_in: Phase | None, iterations_later: int, expected: Category
) -> None:
    if freed_in is None:
        assert category(KEPT, Lifetime(phase, 2, OTHER, -1), None) == expected
    else:
        assert category(FREED, Lifetime(phase, 2, freed_in, 2 + iterations_later), None) == expected


def test_never_freed_is_not_freed_in_other_outside_of_iterations() -> None:
    assert category(KEPT, Lifetime(FORWARD, -1, OTHER, -1), None) == Category.ACTIVATION


def test_a_free_inside_the_own_step_is_not_in_a_later_iteration() -> None:
    lifetime = Lifetime(STEP, 2, STEP, 3, freed_in_own_step=True)
    assert category(FREED, lifetime, None) == Category.TEMPORARY


def test_what_was_born_before_is_unknown_unless_it_is_named() -> None:
    born_before = replace(FREED, flags=BlockFlag.BORN_BEFORE)
    lifetime = Lifetime(OTHER, -1, OTHER, 0)
    assert category(born_before, lifetime, None) == Category.UNKNOWN
    assert category(born_before, lifetime, named("parameter")) == Category.PARAMETER


def named(*roles: str, address: int = 0x1000, time_ns: int = 1000) -> dict[str, Any]:
    count = len(roles)
    return {"tensors": {"role": list(roles), "address": [address] * count, "time_ns": [time_ns] * count}}


FORWARD_BLOCK = Lifetime(FORWARD, 0, BACKWARD, 0)


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (("gradient", "input", "optimizer_state", "buffer", "parameter"), Category.PARAMETER),
        (("gradient", "input", "optimizer_state", "buffer"), Category.BUFFER),
        (("gradient", "input", "optimizer_state"), Category.OPTIMIZER_STATE),
        (("input", "gradient"), Category.GRADIENT),
        (("input",), Category.INPUT),
        (("a role of tomorrow",), Category.ACTIVATION),
    ],
)
def test_the_strongest_name_wins(roles: tuple[str, ...], expected: Category) -> None:
    assert category(FREED, FORWARD_BLOCK, named(*roles)) == expected


@pytest.mark.parametrize(("time_ns", "is_named"), [(999, False), (1000, True), (8999, True), (9000, False)])
def test_a_name_holds_while_the_block_lives(time_ns: int, is_named: bool) -> None:
    found = category(FREED, FORWARD_BLOCK, named("parameter", time_ns=time_ns))
    assert (found == Category.PARAMETER) == is_named


def test_names_are_for_the_gpu_in_a_phantom_capture() -> None:
    phantom = {**named("parameter"), "mode": "phantom"}
    on_gpu = replace(FREED, device_type=1, device_index=0)
    assert category(on_gpu, FORWARD_BLOCK, phantom) == Category.PARAMETER
    assert category(FREED, FORWARD_BLOCK, phantom) == Category.ACTIVATION


def test_names_are_for_the_address_on_a_cpu() -> None:
    assert category(FREED, FORWARD_BLOCK, named("parameter", address=0x2000)) == Category.ACTIVATION
    on_gpu = replace(FREED, device_type=1, device_index=0)
    assert category(on_gpu, FORWARD_BLOCK, named("parameter")) == Category.ACTIVATION
    without_address = replace(FREED, address=-1)
    assert category(without_address, FORWARD_BLOCK, named("parameter", address=-1)) == Category.ACTIVATION
