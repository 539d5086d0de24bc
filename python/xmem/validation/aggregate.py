"""Results over groups of runs: by the factors that the experiment varied, with their uncertainty.

The paper has two experiments. One varies each factor in turn (ANOVA): what share of the errors' variance does
each factor explain, and how do errors spread within each of its values? The other draws runs at random (Monte
Carlo): how far would the figures move if others had been drawn?
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from xmem.records import dataclass
from xmem.validation.metrics import Judged, Summary, summarize

FACTORS: Mapping[str, Callable[[Judged], str]] = {
    "model": lambda row: row.run.model.rpartition("/")[2],
    "family": lambda row: row.run.family,
    "optimizer": lambda row: row.run.optimizer,
    "gpu": lambda row: row.run.gpu.rpartition("NVIDIA ")[2],
    "zero_grad": lambda row: str(row.run.zero_grad),
    "set": lambda row: row.run.set,
}
_SEED = 20251
_DRAWS = 2000
_EXPERIMENTS = {"anova": "anova", "monte_carlo": "monte carlo"}


def experiment(rows: Sequence[Judged], name: str) -> tuple[Judged, ...]:
    """Return the rows of one experiment, ``anova`` or ``monte_carlo``, by the words of their set."""
    word = _EXPERIMENTS[name]
    return tuple(row for row in rows if word in row.run.set.lower())


def grouped(rows: Sequence[Judged], factor: str) -> dict[str, tuple[Judged, ...]]:
    """Group rows by their value of a factor, those with the largest median error first."""
    value = FACTORS[factor]
    groups: dict[str, list[Judged]] = {}
    for row in rows:
        groups.setdefault(value(row), []).append(row)
    ordered = sorted(groups, key=lambda name: (-_median_error(groups[name]), name))
    return {name: tuple(groups[name]) for name in ordered}


def summaries(rows: Sequence[Judged], factor: str) -> dict[str, Summary]:
    """Return the metrics for each value of a factor, in the order of ``grouped``."""
    return {name: summarize(group) for name, group in grouped(rows, factor).items()}


def worst_first(rows: Sequence[Judged]) -> tuple[Judged, ...]:
    """Sort wrong verdicts first, then by error, largest first; runs that failed as predicted come last."""
    return tuple(sorted(rows, key=lambda row: (row.verdict_is_right, row.error is None, -(row.error or 0.0))))


def _median_error(rows: Sequence[Judged]) -> float:
    errors = [row.error for row in rows if row.error is not None]
    return statistics.median(errors) if errors else -1.0


@dataclass(frozen=True)
class Variance:
    """One-way analysis of variance of the signed errors by a factor.

    Attributes:
        groups: Number of values of the factor.
        rows: Number of errors.
        explained: Share of their variance that lies between the groups, 0 to 1.
        f: Ratio of the variance between groups to that within them; None if the latter is 0 or there are
            too few rows.
    """

    groups: int
    rows: int
    explained: float
    f: float | None


def variance(rows: Sequence[Judged], factor: str) -> Variance | None:
    """Return how far a factor explains the signed errors; None if it has one value or all errors agree."""
    groups = [
        np.array([row.signed_error for row in group if row.signed_error is not None])
        for group in grouped(rows, factor).values()
    ]
    groups = [group for group in groups if len(group)]
    if len(groups) < 2:
        return None
    everything = np.concatenate(groups)
    middle = everything.mean()
    total = float(((everything - middle) ** 2).sum())
    if total == 0:
        return None
    between = float(sum(len(group) * (group.mean() - middle) ** 2 for group in groups))
    within = max(total - between, 0.0)
    freedom = len(everything) - len(groups)
    f = None
    if freedom > 0 and within > total * 1e-12:
        f = (between / (len(groups) - 1)) / (within / freedom)
    return Variance(len(groups), len(everything), between / total, f)


@dataclass(frozen=True)
class Range:
    """Range of the middle 95 of 100 redrawn samples."""

    low: float
    high: float


@dataclass(frozen=True)
class Sampling:
    """Figures that other draws of runs would give.

    Attributes:
        draws: Number of samples redrawn from the rows, each of as many rows, with replacement.
        median_relative_error: Range of the median error; None without errors.
        failure_probability: Range of the share of failures.
        conserved_bytes: Range of the memory conserved.
    """

    draws: int
    median_relative_error: Range | None
    failure_probability: Range
    conserved_bytes: Range


def sampling(rows: Sequence[Judged], draws: int = _DRAWS) -> Sampling | None:
    """Redraw the rows; the same rows give the same ranges. None without rows."""
    if not rows:
        return None
    generator = np.random.default_rng(_SEED)
    errors = np.array([np.nan if row.error is None else row.error for row in rows])
    failed = np.array([row.failed for row in rows], np.float64)
    conserved = np.array([row.conserved_bytes for row in rows], np.float64)
    picks = generator.integers(0, len(rows), (draws, len(rows)))
    drawn = errors[picks]
    drawn = drawn[~np.isnan(drawn).all(axis=1)]
    return Sampling(
        draws,
        _range(np.nanmedian(drawn, axis=1)) if len(drawn) else None,
        _range(failed[picks].mean(axis=1)),
        _range(conserved[picks].mean(axis=1)),
    )


def _range(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Range:
    low, high = np.percentile(values, [2.5, 97.5])
    return Range(float(low), float(high))
