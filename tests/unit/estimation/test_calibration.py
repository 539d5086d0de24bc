"""Intervals: ranks, tails and what they are made of, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xmem.errors import ConfigError
from xmem.estimation.calibration import Residuals, interval, parse, render, require_confidence, shipped
from xmem.estimation.estimate import Bounds

# -4 to 5 per cent.
TEN = Residuals(tuple(value / 100 for value in range(-4, 6)))
GROUPS = {"cpu": {"other": TEN}}


@pytest.mark.parametrize(
    ("confidence", "upper"),
    [
        (0.5, 0.01),  # rank ceil(11 * 0.5) = 6: the sixth smallest is +1
        (0.6, 0.02),  # ceil(6.6) = 7
        (0.9, 0.05),  # ceil(9.9) = 10: the largest
    ],
)
def test_upper_bound_is_the_residual_of_its_rank(confidence: float, upper: float) -> None:
    assert TEN.upper(confidence) == pytest.approx(upper)
    assert not TEN.is_continued(confidence)


def test_lower_bound_mirrors_the_upper_one() -> None:
    assert TEN.lower(0.9) == pytest.approx(-0.04)
    assert TEN.lower(0.6) == pytest.approx(-0.01)
    assert TEN.lower(0.5) == 0.0  # the sixth largest is 0, and never above


def test_beyond_the_rows_the_tail_is_continued() -> None:
    # The largest fifth of ten rows is two, above the eighth (+3): excesses 1 and 2, 1.5 on average.
    assert TEN.is_continued(0.99)
    assert TEN.upper(0.99) == pytest.approx(0.03 + 2 * 0.015 * ((2 / (11 * 0.01)) ** 0.5 - 1))
    # Of five models: the two count as one independent excess.
    alike = Residuals(TEN.values, models=5)
    assert alike.upper(0.99) == pytest.approx(0.03 + 0.015 * (2 / (11 * 0.01) - 1))
    assert TEN.upper(0.999) > TEN.upper(0.99) > TEN.upper(0.9)
    # Never less than the largest that was seen.
    assert TEN.upper(0.92) >= 0.05


def test_estimates_that_were_always_too_high_are_not_cut() -> None:
    always_high = Residuals((-0.3, -0.2, -0.1, -0.1, -0.05))
    assert always_high.upper(0.6) == 0.0
    assert always_high.lower(0.6) < 0


def test_what_was_held_against_the_phantom_has_its_residuals_on_top() -> None:
    both = {"foreign": {"other": TEN}, "phantom": {"other": Residuals(TEN.values)}}
    found = interval(10_000, way="foreign", kind="other", confidence=0.9, calibration=both)
    assert (found.low_bytes, found.high_bytes) == (9_216, 11_025)  # 0.96 and 1.05, twice
    assert found.basis == "10 measured runs (foreign, other)"
    assert set(shipped()) >= {"foreign", "foreign_without_shapes", "phantom", "fitted"}


def test_interval_of_an_estimate() -> None:
    found = interval(10_000, way="cpu", kind="other", confidence=0.9, context_bytes=500, calibration=GROUPS)
    assert (found.low_bytes, found.high_bytes) == (500 + 9_600, 500 + 10_500)
    assert found.confidence == 0.9
    assert found.basis == "10 measured runs (cpu, other)"


def test_what_the_estimate_leaves_open_widens_it() -> None:
    found = interval(
        10_000,
        way="cpu",
        kind="other",
        confidence=0.99,
        least_bytes=9_000,
        most_bytes=12_000,
        calibration=GROUPS,
    )
    assert found.high_bytes == math.ceil(12_000 * (1 + TEN.upper(0.99)))
    assert found.low_bytes == math.floor(9_000 * (1 + TEN.lower(0.99)))
    assert "extrapolated tail" in found.basis
    assert "leaves open" in found.basis


@pytest.mark.parametrize("groups", [{}, {"cpu": {"other": Residuals((0.1,))}}])
def test_without_measured_runs_the_allocator_bounds_it(groups: dict[str, dict[str, Residuals]]) -> None:
    found = interval(
        10_000, way="cpu", kind="other", confidence=0.9, bounds=Bounds(8_000, 90_000), calibration=groups
    )
    assert (found.low_bytes, found.high_bytes) == (8_000, 90_000)
    assert found.basis.startswith("allocator bounds")


@pytest.mark.parametrize("confidence", [0.49, 1.0, 99.0, float("nan")])
def test_invalid_confidence(confidence: float) -> None:
    with pytest.raises(ConfigError, match=r"at least 0\.5"):
        require_confidence(confidence)


def test_calibration_as_text() -> None:
    text = render(
        {"cpu": {"other": TEN, "convolutional": Residuals((0.0,) * 12, models=4)}}, "How it was made."
    )
    assert text.startswith("# How it was made.\n")
    assert parse(text) == {"cpu": {"other": TEN, "convolutional": Residuals((0.0,) * 12, models=4)}}
    with pytest.raises(ConfigError, match="list residuals by way and kind"):
        parse("[cpu]\nother = 3\n")


@pytest.mark.parametrize(
    ("way", "kind", "basis"),
    [
        ("cpu", "other", "cpu, other"),
        ("fitted", "other", "cpu, other"),
        ("phantom", "other", "phantom, convolutional"),
        ("cpu", "convolutional", "fitted, convolutional"),
    ],
)
def test_the_nearest_kind_with_enough_rows_stands_in(way: str, kind: str, basis: str) -> None:
    groups = {
        "cpu": {"other": TEN, "convolutional": Residuals((0.1,) * 4)},
        "fitted": {"convolutional": Residuals((0.2,) * 9)},
        "phantom": {"convolutional": TEN},
    }
    found = interval(10_000, way=way, kind=kind, confidence=0.6, calibration=groups)
    assert f"({basis})" in found.basis


def test_the_continued_tail_covers_new_draws() -> None:
    generator = np.random.default_rng(7)
    covered = 0
    for _ in range(4000):
        *known, new = generator.exponential(0.05, 31)
        covered += new <= Residuals(tuple(sorted(known))).upper(0.99)
    assert covered / 4000 == pytest.approx(0.99, abs=0.005)


def test_rows_of_one_model_are_no_more_evidence_than_one() -> None:
    """Of 16 models with two equal rows each: what counts them as 32 is exceeded more often than it says."""
    generator = np.random.default_rng(7)
    covered = {0: 0, 16: 0}
    for _ in range(4000):
        *known, new = generator.exponential(0.05, 17)
        for models in covered:
            covered[models] += new <= Residuals(tuple(sorted(known * 2)), models).upper(0.99)
    assert covered[0] / 4000 < 0.98
    assert covered[16] / 4000 == pytest.approx(0.985, abs=0.005)


def test_the_shipped_calibration_can_be_read() -> None:
    for kinds in shipped().values():
        assert set(kinds) <= {"convolutional", "other"}
        assert all(0 < group.models <= len(group.values) for group in kinds.values())
