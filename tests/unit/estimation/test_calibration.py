"""Intervals: ranks, tails and what they are made of, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from xmem.errors import ConfigError
from xmem.estimation.calibration import (
    LibraryResiduals,
    ProjectResiduals,
    Residuals,
    interval,
    is_calibrated,
    parse,
    render,
    require_confidence,
    shipped,
)
from xmem.estimation.estimate import Bounds

# -4 to 5 per cent.
TEN = Residuals(tuple(value / 100 for value in range(-4, 6)))
GROUPS = {"cpu": {"other": TEN}}
# Of four libraries with seven jobs: from above 10, 4, 2 and 0 per cent at most, from below 6, 5, 0 and 0.
FOUR = LibraryResiduals(
    {
        "large": ((0.1, -0.05), (0.0, 0.01)),
        "medium": ((0.04,), (0.0, 0.0)),
        "mixed": ((0.02, -0.06),),
        "small": ((0.0, 0.0), (0.0,)),
    }
)


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
    assert parse(render({"foreign": {"other": FOUR}}, "")) == {"foreign": {"other": FOUR}}
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


def test_a_job_counts_as_its_worst_trace_from_above_and_from_below() -> None:
    # At 0.6 the third of four libraries: ceil(5 * 0.6). Of seven jobs, the fifth: 0.02, and 0 from below.
    assert FOUR.upper(0.6) == pytest.approx(0.04)
    assert FOUR.lower(0.6) == pytest.approx(-0.05)
    # At 0.9, one of four is missing to the rank: 4% and its one excess of 6% twice as rare; ten at least.
    assert FOUR.is_continued(0.9)
    assert FOUR.upper(0.9) == pytest.approx(0.04 + 0.06 * (1 / (5 * 0.1) - 1))
    assert FOUR.words == "7 measured jobs of 4 libraries"


def test_no_library_that_is_added_makes_a_bound_narrower_than_the_worst_of_all() -> None:
    libraries = dict(FOUR.libraries)
    for number in range(14):  # 18 in all, with a hundred jobs more, all of them inside
        libraries[f"added {number}"] = ((0.0, 0.0),) * 7
        more = LibraryResiduals(libraries)
        assert more.upper(0.9) >= 0.1
        assert more.lower(0.9) <= -0.06


def test_each_library_is_left_out_in_turn() -> None:
    # Without "large", the others have 4, 2 and 0%, and a tail to 2 + 2 * 1.5 = 5%: its 10% are
    # outside. Without "mixed", they have -5, 0 and 0%, and a tail to -5 * 1.5 = -7.5%: its -6% are inside.
    assert FOUR.held_out(0.9) == (11, 12)
    assert LibraryResiduals({"one": ((0.0,),) * 9}).held_out(0.9) == (0, 9)


def test_what_does_not_hold_for_a_library_left_out_is_not_enough() -> None:
    alike = LibraryResiduals(dict.fromkeys("abc", ((0.02, -0.02),) * 3))
    assert alike.is_enough
    assert not LibraryResiduals(dict.fromkeys("abc", ((0.02, -0.02),) * 2)).is_enough  # of six jobs
    assert not LibraryResiduals({**alike.libraries, "off": ((0.3, -0.02), (0.2, 0.3))}).is_enough
    assert not LibraryResiduals({"a": ((0.0,),) * 20}).is_enough  # nothing to hold it against


def projects_of(values: dict[str, list[float]]) -> ProjectResiduals:
    """Projects of jobs with one run each."""
    return ProjectResiduals({name: tuple((value,) for value in of) for name, of in values.items()})


def test_projects_of_one_size_are_bounded_as_rows_of_one_kind() -> None:
    """As long as none has enough jobs for bounds of its own."""
    values = [value / 100 for value in range(-4, 16)]
    projects = projects_of({name: values[start::4] for start, name in enumerate("abcd")})
    rows = Residuals(tuple(values), models=4)
    for confidence in (0.5, 0.6, 0.9, 0.95, 0.99):
        assert projects.upper(confidence) == pytest.approx(rows.upper(confidence))
        assert projects.lower(confidence) == pytest.approx(rows.lower(confidence))
        assert projects.is_continued(confidence) == rows.is_continued(confidence)


def test_a_project_with_many_jobs_weighs_no_more_than_one_with_few() -> None:
    # Two projects; 95 of 100 jobs are equal, but half of the weight has 4%.
    uneven = projects_of({"many": [0.0] * 95, "few": [0.04] * 5})
    effective = 1 / (95 * (1 / 190) ** 2 + 5 * (1 / 10) ** 2)
    assert effective == pytest.approx(19.0)
    assert not uneven.is_continued(0.9)  # 20 / 19 * 0.9 is less than 1
    assert uneven.upper(0.6) == pytest.approx(0.04)
    assert Residuals(tuple([0.0] * 95 + [0.04] * 5)).upper(0.9) == 0.0


def test_no_bound_is_narrower_than_what_a_project_by_itself_gives() -> None:
    alike = {name: [0.0] * 60 for name in "abcdefgh"}
    spread = [value / 1000 for value in range(-10, 10)]
    projects = projects_of({**alike, "spread": spread})
    own = Residuals(tuple(spread))
    assert projects_of(alike).upper(0.9) == 0.0
    assert (projects.upper(0.9), projects.lower(0.9)) == pytest.approx((own.upper(0.9), own.lower(0.9)))
    beside = ProjectResiduals(projects_of(alike).projects, authors=TEN)
    for confidence in (0.9, 0.99):
        assert beside.upper(confidence) >= TEN.upper(confidence)
        assert beside.lower(confidence) <= TEN.lower(confidence)
    assert beside.held_out(0.9)["xmem_paper"] == (1, 10)  # the others hold only what is equal
    assert beside.words == "490 measured jobs of 9 projects"


def test_a_job_of_a_project_counts_as_its_worst_run_both_ways() -> None:
    jobs = tuple((-0.02, 0.03) for _ in range(10))
    assert ProjectResiduals({"one": jobs}).upper(0.9) == pytest.approx(0.03)
    assert ProjectResiduals({"one": jobs}).lower(0.9) == pytest.approx(-0.02)
    assert not ProjectResiduals({"one": jobs[:8]}).is_enough
    assert ProjectResiduals({"one": jobs, "two": jobs}).words == "20 measured jobs of 2 projects"


def test_each_project_is_left_out_in_turn() -> None:
    projects = projects_of({"a": [0.0] * 10, "b": [0.01] * 10, "off": [0.0] * 5 + [0.3] * 5})
    held = projects.held_out(0.9)
    assert held["a"] == (10, 10)
    assert held["b"] == (10, 10)
    assert held["off"] == (5, 10)  # of the others, 1% is the most
    assert projects_of({"a": [0.0] * 10}).held_out(0.9) == {}


def test_bounds_of_projects_hold_for_new_ones() -> None:
    """Projects of one to sixty jobs, each with an error of its own."""
    generator = np.random.default_rng(7)
    shares = []
    for _ in range(300):
        every = [
            generator.exponential(0.02) * 0.2 + generator.exponential(0.02, generator.integers(1, 61))
            for _ in range(9)
        ]
        *known, new = every
        bound = projects_of({str(number): list(of) for number, of in enumerate(known)}).upper(0.9)
        shares.append(float(np.mean(new <= bound)))
    assert np.mean(shares) >= 0.89


def test_what_projects_published_as_text() -> None:
    published = {"phantom": {"other": projects_of({"a": [0.01, 0.0], "b": [-0.02]})}}
    assert parse(render(published, "Two lines\nof source")) == published
    with pytest.raises(ConfigError, match="a job without residuals"):
        parse("[phantom.other.projects]\na = [[]]\n")


def test_the_shipped_intervals_rest_on_projects_and_on_the_runs_of_the_authors() -> None:
    group = shipped()["phantom"]["other"]
    assert isinstance(group, ProjectResiduals)
    assert group.authors is not None
    assert len(group.projects) >= 3
    assert group.upper(0.9) >= group.authors.upper(0.9)
    for inside, jobs in (held for name, held in group.held_out(0.9).items() if name != "xmem_paper"):
        assert inside >= 0.8 * jobs


@pytest.mark.parametrize("way", ["foreign", "foreign_without_shapes"])
@pytest.mark.parametrize("kind", ["other", "convolutional"])
def test_intervals_of_traces_by_others_hold_for_each_library_left_out(way: str, kind: str) -> None:
    """On the shipped rows, from bounds made here: the worst that the other libraries have, each way."""
    group = shipped()[way][kind]
    assert isinstance(group, LibraryResiduals)
    inside, traces = 0, 0
    for left_out, jobs in group.libraries.items():
        others = [
            residual
            for name, of_library in group.libraries.items()
            for job in of_library
            for residual in job
            if name != left_out
        ]
        for residual in (residual for job in jobs for residual in job):
            traces += 1
            inside += min([*others, 0.0]) <= residual <= max([*others, 0.0])
    assert len(group.libraries) >= 2
    assert inside <= group.held_out(0.9)[0]  # those of a tail reach further
    assert not is_calibrated(way, kind) or group.held_out(0.9)[0] >= 0.9 * traces
    assert is_calibrated(way, kind) or inside < 0.9 * traces


def test_the_shipped_calibration_can_be_read() -> None:
    for kinds in shipped().values():
        assert set(kinds) <= {"convolutional", "other"}
        for group in kinds.values():
            assert not isinstance(group, Residuals) or 0 < group.models <= len(group.values)
