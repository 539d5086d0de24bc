"""The occupancy calculator against its slow twin, on random launches for every compute capability."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmem.occupancy.calculator import Filling, Limiter, Residency, filling, residency
from xmem.occupancy.limits import known_capabilities, limits_of
from xmem.testing.reference.occupancy import Launch, occupancy

launches = st.builds(
    Launch,
    threads=st.one_of(st.integers(1, 1024), st.sampled_from([32, 64, 96, 128, 256, 384, 512, 1024])),
    registers=st.one_of(st.integers(1, 255), st.sampled_from([16, 32, 40, 64, 128, 168, 255])),
    shared_bytes=st.one_of(
        st.just(0),
        st.integers(0, 240 * 1024),
        st.builds(lambda kib, off: kib * 1024 + off, st.integers(0, 228), st.sampled_from([0, 1, 16])),
    ),
    blocks=st.one_of(st.integers(0, 40), st.integers(1, 20_000)),
)


@settings(max_examples=500)
@given(
    st.sampled_from(known_capabilities()),
    st.sampled_from([1, 20, 108, 132]),
    st.lists(launches, min_size=1, max_size=8),
)
def test_columns_equal_one_launch_at_a_time(
    capability: tuple[int, int], multiprocessors: int, rows: list[Launch]
) -> None:
    limits = limits_of(capability)
    held, filled = _columns(limits, multiprocessors, rows)
    for row, launch in enumerate(rows):
        expected = occupancy(limits, multiprocessors, launch)
        assert held.active_blocks[row] == expected.active_blocks
        assert held.theoretical[row] == pytest.approx(expected.theoretical)
        for name in ("waves", "tail", "steady", "elapsed", "active"):
            assert getattr(filled, name)[row] == pytest.approx(getattr(expected, name)), name


@settings(max_examples=300)
@given(st.sampled_from(known_capabilities()), st.lists(launches, min_size=1, max_size=8))
def test_one_more_of_what_limits_never_fits(capability: tuple[int, int], rows: list[Launch]) -> None:
    limits = limits_of(capability)
    held, _ = _columns(limits, 1, rows)
    for row, launch in enumerate(rows):
        blocks, warps = held.active_blocks[row] + 1, held.warps_per_block[row]
        if held.limiter[row] == Limiter.WARPS:
            assert blocks * warps > limits.warps
        elif held.limiter[row] == Limiter.BLOCKS:
            assert blocks > limits.blocks
        elif held.limiter[row] == Limiter.SHARED_MEMORY:
            assert (
                blocks * (launch.shared_bytes + limits.reserved_shared_bytes + limits.shared_unit)
                > limits.shared_bytes
            )
        assert 0 <= held.theoretical[row] <= 1


def _columns(limits, multiprocessors: int, rows: list[Launch]) -> tuple[Residency, Filling]:
    held = residency(
        limits,
        np.array([row.threads for row in rows]),
        np.array([row.registers for row in rows]),
        np.array([row.shared_bytes for row in rows]),
    )
    return held, filling(limits, multiprocessors, held, np.array([row.blocks for row in rows]))
