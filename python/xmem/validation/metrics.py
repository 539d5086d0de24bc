"""Accuracy of estimates against measured runs, by the definitions of the xMem paper (Middleware '25, 4.1).

A method gives an estimate of the peak and says whether the job runs out of memory. Two checks follow. The
first (C1, equation 4) is whether that verdict was right. The second (C2, equation 5) runs the job again
with the estimate as its limit, where both said that it fits: the estimate fails if the job then runs out of
memory. We cannot run again, so the second check is decided by what is known of the run: a limit of at least
its peak is enough, and so is one at least as large as a limit under which the authors saw it finish; any
other one counts as a failure. As the authors did, the limit is the estimate with the CUDA context, rounded
to one per cent of the GPU's memory. Errors (equation 2) are against the peak of the first run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np

from xmem.records import dataclass
from xmem.validation.estimates import RowEstimate
from xmem.validation.runs import MeasuredRun

SecondRound = Literal["passed", "failed", "not_run"]
SecondRoundBasis = Literal["peak", "published_limit", "published_run", "unproven", "none"]


@dataclass(frozen=True)
class Judged:
    """An estimate of a run, judged; sizes in bytes.

    Attributes:
        run: The measured run.
        estimate: The estimate of the run.
        limit_bytes: Limit of a second run.
        predicts_oom: Whether the estimate predicts that the job fails.
        second_round: ``not_run`` where it fails on either side.
        second_round_basis: ``peak``: the limit is no less than the peak. ``published_limit``: less than the
            peak, but no less than a limit under which the run was seen to finish. ``published_run``: exactly
            this run was made. ``unproven``: less than the peak, and nothing is known. ``none``: not run.
    """

    run: MeasuredRun
    estimate: RowEstimate
    limit_bytes: int
    predicts_oom: bool
    second_round: SecondRound
    second_round_basis: SecondRoundBasis

    @property
    def estimate_bytes(self) -> int:
        """The estimate."""
        assert self.estimate.estimate_bytes is not None
        return self.estimate.estimate_bytes

    @property
    def signed_error(self) -> float | None:
        """Estimate over peak, minus 1; None for a run that failed, which has no peak."""
        return None if self.run.out_of_memory else self.estimate_bytes / self.run.peak_bytes - 1

    @property
    def error(self) -> float | None:
        """Relative error, equation 2."""
        return None if self.signed_error is None else abs(self.signed_error)

    @property
    def verdict_is_right(self) -> bool:
        """Whether the verdict is right: C1, equation 4."""
        return self.predicts_oom == self.run.out_of_memory

    @property
    def failed(self) -> bool:
        """Whether the estimate fails: not C2, equation 5."""
        return not self.verdict_is_right or self.second_round == "failed"

    @property
    def conserved_bytes(self) -> int:
        """Memory saved by trusting the estimate, equation 7; a failure loses the whole GPU."""
        if self.failed:
            return -self.run.total_bytes
        if self.run.out_of_memory:
            return self.run.total_bytes
        return self.run.total_bytes - self.estimate_bytes


def judge(run: MeasuredRun, estimate: RowEstimate, context_bytes: int = 0) -> Judged:
    """Judge one existing estimate.

    Args:
        run: The measured run.
        estimate: Estimate of this run.
        context_bytes: CUDA context, which the estimate excludes and a limit would include.
    """
    assert estimate.estimate_bytes is not None
    whole_bytes = estimate.estimate_bytes + context_bytes
    predicts_oom = estimate.estimated_oom
    if predicts_oom is None:
        predicts_oom = whole_bytes > run.total_bytes  # equation 1
    limit_bytes = second_round_limit(whole_bytes, run.total_bytes)
    outcome: tuple[SecondRound, SecondRoundBasis] = ("not_run", "none")
    if not predicts_oom and not run.out_of_memory:
        outcome = _second_round(run, limit_bytes, published=estimate.way == "xMem")
    return Judged(run, estimate, limit_bytes, predicts_oom, *outcome)


def second_round_limit(whole_bytes: int, total_bytes: int) -> int:
    """Return the authors' limit of a second run: the estimate in whole per cents of the GPU's memory."""
    return round(round(whole_bytes / total_bytes, 2) * total_bytes)


def _second_round(
    run: MeasuredRun, limit_bytes: int, *, published: bool
) -> tuple[SecondRound, SecondRoundBasis]:
    if published and run.published_second_oom is not None:
        return ("failed" if run.published_second_oom else "passed"), "published_run"
    if limit_bytes >= run.peak_bytes:
        return "passed", "peak"
    if run.published_second_oom is False and "xMem" in run.published_bytes:
        seen_bytes = second_round_limit(run.published_bytes["xMem"], run.total_bytes)
        if limit_bytes >= seen_bytes:
            return "passed", "published_limit"
    return "failed", "unproven"


@dataclass(frozen=True)
class Summary:
    """Metrics of a method over some runs. Figures over no runs are None; sizes in bytes.

    Attributes:
        runs: Rows with an estimate.
        without_estimate: Rows without one, which no other figure includes.
        measured_runs: Those of ``runs`` that did not fail and so have a peak.
        median_relative_error: MRE, equation 3, over those.
        mean_relative_error: Over the same.
        p95_relative_error: Over the same, interpolated linearly between rows.
        max_relative_error: Over the same.
        median_signed_error: Negative where estimates are too low.
        below_truth: Rows whose estimate is less than the peak.
        failures: Rows that fail a check.
        failures_unproven: Those second runs that count as failed only since nothing is known about them.
        failure_probability: PEF, equation 6; its least value has no unproven ones in it.
        real_ooms: Runs that failed.
        ooms_foreseen: Those that were predicted to fail.
        false_ooms: Runs that did not fail but were predicted to.
        conserved_bytes: MCP, equation 8.
        median_seconds: Runtime of the estimates.
    """

    runs: int
    without_estimate: int
    measured_runs: int
    median_relative_error: float | None
    mean_relative_error: float | None
    p95_relative_error: float | None
    max_relative_error: float | None
    median_signed_error: float | None
    below_truth: int
    failures: int
    failures_unproven: int
    failure_probability: float | None
    real_ooms: int
    ooms_foreseen: int
    false_ooms: int
    conserved_bytes: float | None
    median_seconds: float | None


def summarize(judged: Sequence[Judged], without_estimate: int = 0) -> Summary:
    """Return the paper's metrics over some judged estimates."""
    signed = [row.signed_error for row in judged if row.signed_error is not None]
    errors = [abs(error) for error in signed]
    seconds = [row.estimate.seconds for row in judged if row.estimate.seconds is not None]
    failures = sum(row.failed for row in judged)
    return Summary(
        runs=len(judged),
        without_estimate=without_estimate,
        measured_runs=len(errors),
        median_relative_error=statistics.median(errors) if errors else None,
        mean_relative_error=statistics.fmean(errors) if errors else None,
        p95_relative_error=float(np.percentile(errors, 95)) if errors else None,
        max_relative_error=max(errors, default=None),
        median_signed_error=statistics.median(signed) if signed else None,
        below_truth=sum(error < 0 for error in signed),
        failures=failures,
        failures_unproven=sum(row.second_round_basis == "unproven" for row in judged),
        failure_probability=failures / len(judged) if judged else None,
        real_ooms=sum(row.run.out_of_memory for row in judged),
        ooms_foreseen=sum(row.run.out_of_memory and row.predicts_oom for row in judged),
        false_ooms=sum(not row.run.out_of_memory and row.predicts_oom for row in judged),
        conserved_bytes=statistics.fmean(row.conserved_bytes for row in judged) if judged else None,
        median_seconds=statistics.median(seconds) if seconds else None,
    )


@dataclass(frozen=True)
class MethodResult:
    """A method over all runs.

    Attributes:
        method: A way, or the name of another method.
        rows: Judged estimates, in the order of the runs.
        summary: Metrics over all of them.
        unanswered: Runs without an estimate, and the reasons.
    """

    method: str
    rows: tuple[Judged, ...]
    summary: Summary
    unanswered: tuple[tuple[MeasuredRun, str], ...]


def judge_all(
    method: str,
    runs: Iterable[MeasuredRun],
    estimate_of: Callable[[MeasuredRun], RowEstimate | None],
    context_of: Callable[[MeasuredRun], int] = lambda _: 0,
) -> MethodResult:
    """Judge a method's estimates of all runs.

    Args:
        method: Name of the method.
        runs: The measured runs.
        estimate_of: Returns the method's estimate of a run, None where nothing is known.
        context_of: CUDA context of a run's GPU that an estimate does not hold; none by default.
    """
    rows, unanswered = [], []
    for run in runs:
        estimate = estimate_of(run)
        if estimate is None or estimate.estimate_bytes is None:
            unanswered.append((run, estimate.note if estimate else ""))
        else:
            rows.append(judge(run, estimate, context_of(run)))
    return MethodResult(method, tuple(rows), summarize(rows, len(unanswered)), tuple(unanswered))
