"""Polynomials pass through every size exactly, or there are none."""

from __future__ import annotations

import random

import numpy as np
import pytest

from xmem.errors import ConfigError
from xmem.scaling.polynomials import Certainty, Polynomials, fit_polynomials


def fitted(points: list[dict[str, int]], *rows: list[int]) -> Polynomials:
    return fit_polynomials(tuple(points[0]), points, np.array(rows, np.int64))


def test_two_points_of_one_dimension() -> None:
    polynomials = fitted([{"batch": 2}, {"batch": 3}], [20, 30], [7, 7], [5, 8], [9, 4])
    values, holds = polynomials.at({"batch": 10})
    assert values[:3].tolist() == [100, 7, 29]
    assert holds.tolist() == [True, True, True, False]  # a size cannot be negative
    assert polynomials.certainty.tolist() == [
        Certainty.VERIFIED,  # one term for two points
        Certainty.VERIFIED,
        Certainty.DETERMINED,  # two terms: any two sizes would have fitted
        Certainty.DETERMINED,
    ]


def test_a_third_point_tells_what_no_polynomial_gives() -> None:
    points = [{"batch": batch} for batch in (2, 3, 8)]
    polynomials = fitted(points, [5, 8, 23], [5, 8, 24], [4, 9, 64])
    # affine, no line (a parabola passes through any three sizes), a square
    assert polynomials.certainty.tolist() == [
        Certainty.VERIFIED,
        Certainty.UNFITTED,
        Certainty.VERIFIED,
    ]
    values, holds = polynomials.at({"batch": 10})
    assert values[[0, 2]].tolist() == [29, 100]
    assert holds.tolist() == [True, False, True]


def test_terms_of_two_dimensions_are_found_among_many() -> None:
    points = [{"batch": batch, "seq": seq} for batch in (2, 3) for seq in (64, 96, 128)]
    truth = {
        "attention": lambda b, s: 4 * 12 * b * s * s,
        "shifted logits": lambda b, s: 4 * 50257 * b * (s - 1),
        "positions": lambda _b, s: 4 * 768 * s,
        "mask bits": lambda b, s: b * s * s // 8,
        "weights": lambda _b, _s: 2_359_296,
    }
    rows = [[size(p["batch"], p["seq"]) for p in points] for size in truth.values()]
    polynomials = fitted(points, *rows)
    assert (polynomials.certainty == Certainty.VERIFIED).all()
    values, holds = polynomials.at({"batch": 17, "seq": 1000})
    assert holds.all()
    assert values.tolist() == [size(17, 1000) for size in truth.values()]


def test_random_polynomials_are_found_again() -> None:
    draw = random.Random(1)
    points = [{"a": a, "b": b} for a in (2, 3, 5) for b in (4, 7, 9)]
    for _ in range(50):
        terms = [(draw.randint(0, 2), draw.randint(0, 2), draw.randint(1, 1000)) for _ in range(3)]
        size = lambda a, b, terms=terms: sum(c * a**i * b**j for i, j, c in terms)  # noqa: E731
        polynomials = fitted(points, [size(p["a"], p["b"]) for p in points])
        assert polynomials.at({"a": 50, "b": 31})[0].tolist() == [size(50, 31)]


def test_values_that_no_machine_could_hold_are_refused() -> None:
    polynomials = fitted([{"seq": 2}, {"seq": 3}, {"seq": 5}], [4, 9, 25], [0, 0, 0])
    assert polynomials.at({"seq": 2**30})[0].tolist() == [2**60, 0]
    for seq in (2**31, 2**40):
        with pytest.raises(ConfigError, match="larger than any memory"):
            polynomials.at({"seq": seq})


def test_a_value_between_whole_numbers_is_rounded_up_and_does_not_hold() -> None:
    polynomials = fitted([{"batch": 8}, {"batch": 16}], [1, 2])
    values, holds = polynomials.at({"batch": 20})
    assert (values.tolist(), holds.tolist()) == ([3], [False])
