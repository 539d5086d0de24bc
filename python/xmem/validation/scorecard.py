"""The scorecard: all methods on the same runs, and intervals of our own ways against the truth."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from xmem.estimation.calibration import KINDS, Calibration, Residuals, interval, shipped
from xmem.estimation.estimate import Interval
from xmem.records import dataclass
from xmem.validation.aggregate import FACTORS, experiment, sampling, summaries, variance, worst_first
from xmem.validation.estimates import WAYS, RowEstimate, context_bytes, first_of, published_estimate
from xmem.validation.metrics import Judged, MethodResult, judge_all
from xmem.validation.runs import PUBLISHED, MeasuredRun

SCHEMA_VERSION = 1
CONFIDENCE = 0.99


@dataclass(frozen=True)
class Coverage:
    """Coverage of the upper bounds of intervals as requests to a scheduler.

    Attributes:
        confidence: Confidence of the bounds.
        rows: Number of runs that did not fail.
        safe: Share of them whose bound is at least the peak; None without rows.
        median_excess: Median of bound over peak, minus 1.
    """

    confidence: float
    rows: int
    safe: float | None
    median_excess: float | None


@dataclass(frozen=True)
class Scorecard:
    """Everything known about the accuracy of the estimates of these runs.

    Attributes:
        runs: The measured runs.
        ours: xMem's own estimates: for each run, that of the first way that has one.
        ways: Each of xMem's ways by itself.
        others: Other methods on the same runs, in the order in which they were given.
        intervals: Interval of each row of ``ours``.
        coverage: Coverage of these intervals, whose calibration may rest on these very runs.
        held_out: Coverage of intervals calibrated on the other models' rows only.
    """

    runs: tuple[MeasuredRun, ...]
    ours: MethodResult
    ways: tuple[MethodResult, ...]
    others: tuple[MethodResult, ...]
    intervals: tuple[Interval, ...]
    coverage: Coverage
    held_out: Coverage

    def to_json(self) -> dict[str, Any]:
        """Return the JSON contract as plain Python objects."""
        rows, summary = self.ours.rows, self.ours.summary
        bounds = {id(row): bound for row, bound in zip(rows, self.intervals, strict=True)}
        return {
            "schema_version": SCHEMA_VERSION,
            **asdict(summary),
            "interval": asdict(self.coverage),
            "interval_held_out": asdict(self.held_out),
            "methods": {result.method: asdict(result.summary) for result in (*self.ways, *self.others)},
            "by": {
                factor: {name: asdict(group) for name, group in summaries(rows, factor).items()}
                for factor in FACTORS
            },
            "experiments": {name: _experiment(rows, name) for name in ("anova", "monte_carlo")},
            "rows": [self._row(row, bounds[id(row)]) for row in worst_first(rows)],
            "rows_without_estimate": [
                {**_identity(run), "note": note, "others": self._others(run)}
                for run, note in self.ours.unanswered
            ],
        }

    def _row(self, row: Judged, bound: Interval) -> dict[str, Any]:
        estimate = row.estimate
        return {
            **_identity(row.run),
            "way": estimate.way,
            "estimate_bytes": estimate.estimate_bytes,
            "truth_bytes": row.run.peak_bytes,
            "relative_error": row.error,
            "signed_error": row.signed_error,
            "estimated_oom": row.predicts_oom,
            "real_oom": row.run.out_of_memory,
            "second_round": row.second_round,
            "second_round_basis": row.second_round_basis,
            "limit_bytes": row.limit_bytes,
            "failed": row.failed,
            "conserved_bytes": row.conserved_bytes,
            "seconds": estimate.seconds,
            "interval": asdict(bound),
            "policies": dict(estimate.policies),
            "note": estimate.note,
            "others": self._others(row.run),
        }

    def _others(self, run: MeasuredRun) -> dict[str, int]:
        """Return the estimates of the run by other methods and each of xMem's ways."""
        return {
            result.method: row.estimate_bytes
            for result in (*self.ways, *self.others)
            for row in result.rows
            if row.run is run
        }


def _identity(run: MeasuredRun) -> dict[str, Any]:
    return {
        "set": run.set,
        "model": run.model,
        "family": run.family,
        "optimizer": run.optimizer,
        "batch_size": run.batch,
        "gpu": run.gpu,
        "zero_grad_mode": run.zero_grad,
    }


def _experiment(rows: Sequence[Judged], name: str) -> dict[str, Any]:
    chosen = experiment(rows, name)
    return {
        "rows": len(chosen),
        "variance": {
            factor: asdict(found)
            for factor in FACTORS
            if factor != "set" and (found := variance(chosen, factor)) is not None
        },
        "sampling": None if (redrawn := sampling(chosen)) is None else asdict(redrawn),
    }


def score(
    runs: Sequence[MeasuredRun],
    estimates: Iterable[RowEstimate],
    *,
    ways: Sequence[str] = WAYS,
    confidence: float = CONFIDENCE,
    calibration: Calibration | None = None,
) -> Scorecard:
    """Judge estimates of runs beside the published ones.

    Args:
        runs: The measured runs.
        estimates: Estimates by xMem's ways and other methods, in any order; the last of equal ones counts.
        ways: xMem's ways, the preferred one first.
        confidence: Confidence of the intervals.
        calibration: Calibration of the intervals; by default the one that comes with xmem.

    Raises:
        ConfigError: A GPU is unknown, or the confidence is invalid.
    """
    everything = tuple(estimates)
    by_way: dict[str, list[RowEstimate]] = {}
    for estimate in everything:
        by_way.setdefault(estimate.way, []).append(estimate)
    contexts = {gpu: context_bytes(gpu) for gpu in {run.gpu for run in runs}}

    def result(method: str, found: Iterable[RowEstimate]) -> MethodResult:
        by_run = {estimate.identity: estimate for estimate in found}
        return judge_all(method, runs, lambda run: by_run.get(run.identity), lambda run: contexts[run.gpu])

    ours = result("ours", first_of(ways, everything))
    own = tuple(result(way, by_way[way]) for way in ways if way in by_way)
    others = [result(method, found) for method, found in by_way.items() if method not in WAYS]
    published = [judge_all(method, runs, partial(published_estimate, method)) for method in PUBLISHED]
    used = shipped() if calibration is None else calibration
    intervals = tuple(_interval(row, confidence, used) for row in ours.rows)
    return Scorecard(
        runs=tuple(runs),
        ours=ours,
        ways=own,
        others=tuple(method for method in (*published, *others) if method.rows),
        intervals=intervals,
        coverage=_coverage(ours.rows, intervals, confidence),
        held_out=held_out_coverage(own, ours.rows, confidence),
    )


def calibrate(
    results: Iterable[MethodResult], without_model: str | None = None
) -> dict[str, dict[str, Residuals]]:
    """Return residuals of judged estimates by way and kind.

    Runs that failed have no truth; figures for runs that were predicted to fail are not estimates of it.

    Args:
        results: Results of xMem's ways.
        without_model: A model whose rows are left out.
    """
    calibration: dict[str, dict[str, Residuals]] = {}
    for result in results:
        for kind in KINDS:
            rows = [
                row
                for row in result.rows
                if not row.run.out_of_memory
                and not row.predicts_oom
                and row.run.model != without_model
                and _kind(row.run) == kind
            ]
            if rows:
                values = sorted(row.run.peak_bytes / row.estimate_bytes - 1 for row in rows)
                models = len({row.run.model for row in rows})
                calibration.setdefault(result.method, {})[kind] = Residuals(tuple(values), models)
    return calibration


def held_out_coverage(ways: Sequence[MethodResult], rows: Sequence[Judged], confidence: float) -> Coverage:
    """Return the coverage of intervals that exclude their own model: calibrated on all others' rows."""
    models = dict.fromkeys(row.run.model for row in rows)
    calibrations = {model: calibrate(ways, without_model=model) for model in models}
    bounds = [_interval(row, confidence, calibrations[row.run.model]) for row in rows]
    return _coverage(rows, bounds, confidence)


def _kind(run: MeasuredRun) -> str:
    return "convolutional" if run.family == "CNN" else "other"


def _interval(row: Judged, confidence: float, calibration: Calibration) -> Interval:
    """Return the interval of the truth, which is without the CUDA context."""
    estimate = row.estimate
    return interval(
        row.estimate_bytes,
        way=estimate.way,
        kind=_kind(row.run),
        confidence=confidence,
        least_bytes=estimate.low_bytes,
        most_bytes=estimate.high_bytes,
        calibration=calibration,
    )


def _coverage(rows: Sequence[Judged], bounds: Sequence[Interval], confidence: float) -> Coverage:
    excess = [
        bound.high_bytes / row.run.peak_bytes - 1
        for row, bound in zip(rows, bounds, strict=True)
        if not row.run.out_of_memory and not row.predicts_oom
    ]
    return Coverage(
        confidence=confidence,
        rows=len(excess),
        safe=sum(value >= 0 for value in excess) / len(excess) if excess else None,
        median_excess=statistics.median(excess) if excess else None,
    )
