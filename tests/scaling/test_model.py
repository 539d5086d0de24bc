"""What a model says of a size is what a run at that size shows."""

from __future__ import annotations

import pytest

import xmem
from scaling.models import model_of, observed, run_at, scratch
from training_sample import MIB
from xmem.errors import ConfigError
from xmem.scaling import Sample, fit, verify


@pytest.mark.parametrize("batch", [1, 8, 100])
def test_a_model_says_what_a_run_would(batch: int) -> None:
    predicted = xmem.estimate(model_of(2, 3).at(batch=batch), gpu="rtx-3060")
    captured = xmem.estimate(observed(run_at(batch)), gpu="rtx-3060")
    assert predicted.peak_reserved_bytes == captured.peak_reserved_bytes
    assert predicted.peak_allocated_bytes == captured.peak_allocated_bytes
    assert predicted.breakdown == captured.breakdown
    assert predicted.verdict == captured.verdict
    assert captured.scaling is None
    assert predicted.scaling is not None
    assert predicted.scaling.at == {"batch": batch}
    assert predicted.scaling.fitted_from == ({"batch": 2}, {"batch": 3})
    assert predicted.scaling.blocks_uncertain == 0
    assert predicted.scaling.peak_reserved_least_bytes == predicted.peak_reserved_bytes
    assert predicted.scaling.peak_reserved_most_bytes == predicted.peak_reserved_bytes


def test_blocks_that_only_some_runs_have_make_an_interval() -> None:
    """A library that takes scratch from batch 3 on: the run at 2 has one block less."""
    model = model_of(2, 3, more=scratch(lambda batch: 40 * MIB if batch >= 3 else 0))
    assert [(found.kind, found.operator, found.bytes) for found in model.differences] == [
        ("missing", "aten::linear", 40 * MIB)
    ]
    scaling = xmem.estimate(model.at(batch=6)).scaling
    assert scaling is not None
    assert scaling.blocks_uncertain == 1
    assert scaling.peak_reserved_least_bytes < 40 * MIB
    assert scaling.peak_reserved_most_bytes > 80 * MIB  # it may grow as the batch does


def test_blocks_that_the_largest_run_does_not_have_are_counted_on_top() -> None:
    model = model_of(2, 3, more=scratch(lambda batch: 40 * MIB if batch < 3 else 0))
    assert [(found.kind, found.bytes) for found in model.differences] == [("extra", 40 * MIB)]
    scaling = xmem.estimate(model.at(batch=3)).scaling
    assert scaling is not None
    assert scaling.peak_reserved_most_bytes - scaling.peak_reserved_least_bytes == 40 * MIB


def test_sizes_that_follow_no_polynomial_are_named() -> None:
    model = model_of(2, 3, 4, 5, more=scratch(lambda batch: {2: 5, 3: 1000, 4: 6, 5: 70_001}[batch]))
    assert [(found.kind, found.operator) for found in model.differences] == [("unfitted", "aten::linear")]
    scaling = xmem.estimate(model.at(batch=10)).scaling
    assert scaling is not None
    assert scaling.blocks_uncertain == 1


def test_a_held_out_run_is_compared_block_by_block() -> None:
    model = model_of(2, 3)
    exact = verify(model, Sample({"batch": 8}, observed(run_at(8))))
    assert (exact.relative_error, exact.bytes_off) == (0.0, 0)
    assert exact.blocks_equal == exact.blocks
    other = verify(model, Sample({"batch": 8}, observed(run_at(9))))
    assert other.relative_error < 0
    assert other.bytes_off == 2 * MIB  # an activation in each of two steps
    assert other.blocks - other.blocks_equal == 2


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([{"batch": 2}], r"too few runs to fit a model \(1\)"),
        ([{"batch": 2}, {"batch": 2}], "at least two values of batch"),
        ([{"batch": 2, "seq": 4}, {"batch": 3, "seq": 4}], "at least two values of seq"),
        ([{"batch": 2}, {"seq": 3}], "batch=N"),
        ([{"batch": 0}, {"batch": 3}], "above 0"),
        ([{"batch": 2}, {"batch": 3}, {"batch": 2}], "two runs are at batch=2"),
    ],
)
def test_points_that_make_no_model(points: list[dict[str, int]], says: str) -> None:
    run = observed(run_at(2))
    with pytest.raises(ConfigError, match=says):
        fit([Sample(point, run) for point in points])


def test_a_point_needs_every_dimension_of_the_model() -> None:
    model = model_of(2, 3)
    for point in ({}, {"batch": 2, "seq": 3}, {"batch": -1}):
        with pytest.raises(ConfigError, match="batch=N"):
            model.at(point)
