"""Long columns at fewer rows."""

from __future__ import annotations

import numpy as np
import pytest

from xmem.simulation.stretches import highest_of_stretches


@pytest.mark.parametrize("stretches", [1, 3, 198, 999])
def test_each_stretch_is_shown_by_its_highest(stretches: int) -> None:
    gauge = np.random.default_rng(stretches).integers(0, 10_000, 1000)
    shown = highest_of_stretches(gauge, stretches)
    assert len(shown) <= stretches
    width = -(-1000 // stretches)
    assert gauge[shown].tolist() == [max(gauge[begin : begin + width]) for begin in range(0, 1000, width)]


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_short_column_is_shown_whole(length: int) -> None:
    assert highest_of_stretches(np.zeros(length, np.int64), 5).tolist() == list(range(length))
