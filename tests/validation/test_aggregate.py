"""Groups, variance and redrawn samples."""

from __future__ import annotations

import pytest
from run_samples import MB, TOTAL, run, said

from xmem.validation.aggregate import experiment, grouped, sampling, summaries, variance, worst_first
from xmem.validation.metrics import Judged, judge


def judged(percent: int, **of: object) -> Judged:
    return judge(run(1000, **of), said(1000 + 10 * percent))  # type: ignore[arg-type]


def test_groups_with_the_largest_median_error_first() -> None:
    rows = [judged(1, model="me/a"), judged(-9, model="me/b"), judged(2, model="me/b"), judged(3, model="c")]
    assert [(name, len(group)) for name, group in grouped(rows, "model").items()] == [
        ("b", 2),
        ("c", 1),
        ("a", 1),
    ]
    assert summaries(rows, "model")["b"].median_relative_error == pytest.approx(0.055)


def test_worst_first() -> None:
    wrong = judge(run(1000), said(1000, oom=True))
    foreseen = judge(run(9000, failed=True), said(9500, oom=True))
    small, large = judged(1), judged(-20)
    assert worst_first([foreseen, small, wrong, large]) == (wrong, large, small, foreseen)


def test_experiments_by_their_set() -> None:
    rows = [judged(1, set_name="001-Anova"), judged(2, set_name="002-Monte Carlo"), judged(3, set_name="")]
    assert experiment(rows, "anova") == (rows[0],)
    assert experiment(rows, "monte_carlo") == (rows[1],)


def test_variance_by_hand() -> None:
    # Errors 1, 3 and 5, 7 per cent: mean 4; between 2 * 4 + 2 * 4 = 16, within 1 + 1 + 1 + 1 = 4, total 20.
    rows = [judged(1, model="a"), judged(3, model="a"), judged(5, model="b"), judged(7, model="b")]
    found = variance(rows, "model")
    assert found is not None
    assert (found.groups, found.rows) == (2, 4)
    assert found.explained == pytest.approx(0.8)
    assert found.f == pytest.approx((16 / 1) / (4 / 2))


def test_variance_needs_differences() -> None:
    assert variance([judged(1), judged(3)], "model") is None
    assert variance([judged(2, model="a"), judged(2, model="b")], "model") is None
    only_between = variance([judged(1, model="a"), judged(3, model="b")], "model")
    assert only_between is not None
    assert (only_between.explained, only_between.f) == (pytest.approx(1.0), None)


def test_redrawn_samples_of_equal_rows_are_all_alike() -> None:
    found = sampling([judged(10)] * 5, draws=50)
    assert found is not None
    assert found.median_relative_error is not None
    assert found.median_relative_error.low == found.median_relative_error.high == pytest.approx(0.10)
    assert found.failure_probability.low == found.failure_probability.high == 0
    assert found.conserved_bytes.low == pytest.approx(TOTAL - 1100 * MB)


def test_redrawn_samples_repeat_and_enclose_the_figure() -> None:
    rows = [judged(percent) for percent in (1, 2, 3, 4, 5, 6, 7)]
    first, second = sampling(rows), sampling(rows)
    assert first == second
    assert first is not None
    assert first.median_relative_error is not None
    assert 0.01 <= first.median_relative_error.low < 0.04 < first.median_relative_error.high <= 0.07
    assert sampling([]) is None
