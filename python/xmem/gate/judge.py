"""Judgement of a job: which limits it breaks, and what holds or added the bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from xmem.errors import XmemError
from xmem.estimation.estimate import Estimate
from xmem.gate.baseline import Baseline
from xmem.gate.limits import Limits, Metric
from xmem.records import dataclass
from xmem.text.units import format_bytes
from xmem.text.words import at_instant

if TYPE_CHECKING:
    from xmem.difference import Difference

_TOP = 5
_OTHER_QUESTIONS = ("gpu", "torch", "alloc_conf", "what_if", "at", "policies_off", "iterations")
_LINE = re.compile(r"(?P<file>.+):(?P<number>\d+)")

# Rows of the category table for what the allocator and the driver add to the blocks.
BEYOND_BLOCKS = "reserved_beyond_allocated"
CONTEXT = "cuda_context"
OUTSIDE = "outside_of_pytorch"
UNCERTAIN = "upper_bound_beyond_estimate"
OTHER_RANK = "larger_rank"


class Rule(StrEnum):
    """Kinds of findings."""

    OVER_BUDGET = "over-budget"
    DOES_NOT_FIT = "does-not-fit"
    GREW = "grew"
    NO_ANSWER = "no-answer"


@dataclass(frozen=True)
class Finding:
    """A limit that was broken.

    Attributes:
        rule: The rule of the limit.
        message: One sentence with the figures.
        bytes_by: Bytes by category, module and source line, largest first: those held at the peak, or for
            ``Rule.GREW`` those added since the baseline. Modules and lines are the largest; categories also
            name the bytes of the figure beyond the blocks in use, so those at the peak sum to it.
        source_line: ``PATH:LINE`` to look at first, None when no line is known.
    """

    rule: Rule
    message: str
    bytes_by: Mapping[str, Mapping[str, int]]
    source_line: str | None

    @property
    def place(self) -> tuple[str, int] | None:
        """File and line number to look at first."""
        match = None if self.source_line is None else _LINE.fullmatch(self.source_line)
        return None if match is None else (match["file"], int(match["number"]))


@dataclass(frozen=True)
class CheckOutcome:
    """One job that was judged.

    Attributes:
        name: Name of the job.
        source: The file that was judged or the command that was captured.
        estimate: Estimate of the job; None when there is no answer.
        limits: Limits that it was checked against.
        bytes: The figure that was compared with budget and GPU, -1 when there is no answer.
        baseline: Baseline that it was compared with.
        baseline_bytes: The same figure of the baseline, -1 when there is none.
        findings: Limits that it breaks; empty when it passes.
        error: Reason why there is no answer.
    """

    name: str
    source: str
    estimate: Estimate | None
    limits: Limits
    bytes: int
    baseline: Baseline | None
    baseline_bytes: int
    findings: tuple[Finding, ...]
    error: XmemError | None = None

    @property
    def passed(self) -> bool:
        """Whether it stays within all of its limits."""
        return not self.findings

    @property
    def estimated_bytes(self) -> int:
        """The figure of the estimate itself, to compare with the baseline; -1 when there is no answer."""
        return -1 if self.estimate is None else self.limits.metric.of(self.estimate)

    @property
    def gpu(self) -> str | None:
        """Name of the GPU for people."""
        verdict = None if self.estimate is None else self.estimate.verdict
        return None if verdict is None else verdict.gpu

    @property
    def doubt(self) -> str | None:
        """Sentence for a job that may need more than its estimate; None for others."""
        return None if self.estimate is None else self.estimate.doubt

    def to_json(self) -> dict[str, Any]:
        """Return plain Python objects for ``json.dumps``."""
        grown = self.baseline is not None
        return {
            "name": self.name,
            "source": self.source,
            "passed": self.passed,
            "metric": self.limits.metric.value,
            "upper_bound": self.limits.upper,
            "bytes": self.bytes,
            "estimated_bytes": self.estimated_bytes,
            "budget_bytes": -1 if self.limits.budget_bytes is None else self.limits.budget_bytes,
            "gpu": None if self.estimate is None else self.estimate.target.gpu,
            "capacity_bytes": -1 if self.estimate is None else self.estimate.target.capacity_bytes,
            "fits": None if self.estimate is None else self.estimate.fits,
            "doubt": self.doubt,
            "baseline": self.baseline.path if self.baseline is not None else None,
            "baseline_bytes": self.baseline_bytes,
            "allowed_growth_bytes": self.limits.max_growth.allowed_bytes(self.baseline_bytes)
            if grown
            else -1,
            "findings": [
                {
                    "rule": finding.rule.value,
                    "message": finding.message,
                    "source_line": finding.source_line,
                    "bytes_by": {key: dict(rows) for key, rows in finding.bytes_by.items()},
                }
                for finding in self.findings
            ],
        }


def judge(
    name: str, source: str, estimate: Estimate, limits: Limits, baseline: Baseline | None = None
) -> CheckOutcome:
    """Judge a job by its limits.

    Args:
        name: Name of the job, for people.
        source: The file or the command that was estimated.
        estimate: Estimate of the job.
        limits: Limits of the job.
        baseline: Earlier estimate of the job.

    Raises:
        ConfigError: The estimate lacks the figure to judge.
    """
    judged_bytes = limits.metric.of(estimate, upper=limits.upper)
    # Growth is measured on the estimate: bounds also move with what is known of other jobs.
    before_bytes = -1 if baseline is None else limits.metric.of(baseline.estimate)
    findings = [
        _over_budget(estimate, limits, judged_bytes),
        _does_not_fit(estimate, limits),
        None if baseline is None else _grew(estimate, limits, baseline),
    ]
    return CheckOutcome(
        name=name,
        source=source,
        estimate=estimate,
        limits=limits,
        bytes=judged_bytes,
        baseline=baseline,
        baseline_bytes=before_bytes,
        findings=tuple(finding for finding in findings if finding is not None),
    )


def failed_outcome(name: str, source: str, limits: Limits, error: XmemError) -> CheckOutcome:
    """Return the outcome of a job that could not be captured or read."""
    finding = Finding(Rule.NO_ANSWER, str(error), {}, None)
    return CheckOutcome(name, source, None, limits, -1, None, -1, (finding,), error)


def _over_budget(estimate: Estimate, limits: Limits, judged_bytes: int) -> Finding | None:
    if limits.budget_bytes is None or judged_bytes <= limits.budget_bytes:
        return None
    over = format_bytes(judged_bytes - limits.budget_bytes)
    message = (
        f"{_subject(estimate, limits)} is {format_bytes(judged_bytes)}, {over} over the budget of "
        f"{format_bytes(limits.budget_bytes)}"
    )
    return Finding(Rule.OVER_BUDGET, message, _held(estimate, limits), _heaviest_line(estimate))


def _does_not_fit(estimate: Estimate, limits: Limits) -> Finding | None:
    verdict = estimate.verdict
    if verdict is None:
        return None
    oom, line = estimate.simulation.oom, _heaviest_line(estimate)
    capacity = f"{format_bytes(verdict.capacity_bytes)} of the {verdict.gpu}"
    if not verdict.fits:
        message = f"does not fit in the {capacity}: needs {format_bytes(estimate.device_peak_bytes)}"
        if oom is not None:
            where = f" at {oom.source_line}" if oom.source_line else ""
            message += (
                f", and runs out {at_instant(oom.iteration, oom.phase)}{where}, asking for "
                f"{format_bytes(oom.requested_bytes)}"
            )
            line = oom.source_line or line
        return Finding(Rule.DOES_NOT_FIT, message, _held(estimate, Limits()), line)
    needed = Metric.DEVICE_PEAK.of(estimate, upper=True) if limits.upper else 0
    if needed <= verdict.capacity_bytes:
        return None
    confidence = "" if estimate.interval is None else f" with {estimate.interval.confidence:g} confidence"
    message = f"may not fit in the {capacity}: needs up to {format_bytes(needed)}{confidence}"
    return Finding(Rule.DOES_NOT_FIT, message, _held(estimate, Limits(upper=True)), line)


def _grew(estimate: Estimate, limits: Limits, baseline: Baseline) -> Finding | None:
    after, before = limits.metric.of(estimate), limits.metric.of(baseline.estimate)
    allowed = limits.max_growth.allowed_bytes(before)
    if after - before <= allowed:
        return None
    from xmem.difference import difference  # it needs NumPy, and nothing else here does

    change = difference(baseline.estimate, estimate)
    share = f" ({(after - before) / before:+.1%})" if before > 0 else ""
    parts = [
        f"the {limits.metric.words} grew by {format_bytes(after - before)}{share}, "
        f"from {format_bytes(before)} in {baseline.path} to {format_bytes(after)}; "
        f"allowed: {limits.max_growth}"
    ]
    parts += [f"mostly {cause.text}" for cause in change.causes if cause.change_bytes > 0][:1]
    parts += [
        f"the baseline was made with {setting.name} {setting.before or 'none'}, not {setting.after or 'none'}"
        for setting in change.settings
        if setting.name in _OTHER_QUESTIONS
    ]
    added = _added(change, limits.metric, baseline.estimate, estimate)
    line = next((name for name in added["source_line"] if _LINE.fullmatch(name)), None)
    return Finding(Rule.GREW, "; ".join(parts), added, line or _heaviest_line(estimate))


def _added(
    change: Difference, metric: Metric, before: Estimate, after: Estimate
) -> dict[str, dict[str, int]]:
    """Return the bytes that each category, module and line gained, most first, without those that shrank."""
    of_both = Limits(metric=metric)
    then, now = _beyond_blocks(before, of_both), _beyond_blocks(after, of_both)
    rows = {
        "category": {size.name: size.change_bytes for size in change.category}
        | {name: now[name] - then[name] for name in now},
        "module": _alike({size.name: size.change_bytes for size in change.module}),
        "source_line": {size.name: size.change_bytes for size in change.source_line},
    }
    return {
        key: _largest({name: size for name, size in sizes.items() if size > 0}) for key, sizes in rows.items()
    }


def _alike(modules: Mapping[str, int]) -> dict[str, int]:
    """Sum the layers of a list: ``GPT.blocks.*.mlp``."""
    from xmem.difference.names import by_pattern

    changed = by_pattern(module for module, size in modules.items() if size)
    return {name: sum(modules[module] for module in group) for name, group in changed.items()}


def _subject(estimate: Estimate, limits: Limits) -> str:
    if not limits.upper or estimate.interval is None:
        return f"the {limits.metric.words}"
    return f"the upper bound ({estimate.interval.confidence:g} confidence) of the {limits.metric.words}"


def _held(estimate: Estimate, limits: Limits) -> dict[str, dict[str, int]]:
    """Return the holders of the figure's bytes at the peak, by category, module and line."""
    breakdown = estimate.breakdown
    categories = {**breakdown.category, **_beyond_blocks(estimate, limits)}
    return {
        "category": _largest({name: size for name, size in categories.items() if size}, None),
        "module": _largest(breakdown.module),
        "source_line": _largest(breakdown.source_line),
    }


def _largest(sizes: Mapping[str, int], count: int | None = _TOP) -> dict[str, int]:
    return dict(sorted(sizes.items(), key=lambda row: -row[1])[:count])


def _beyond_blocks(estimate: Estimate, limits: Limits) -> dict[str, int]:
    """Return the bytes of the figure beyond the blocks in use at the peak of allocated memory."""
    metric, beyond = limits.metric, {}
    if metric is not Metric.ALLOCATED:
        beyond[BEYOND_BLOCKS] = estimate.peak_reserved_bytes - estimate.peak_allocated_bytes
    if metric is Metric.DEVICE_PEAK:
        beyond[CONTEXT] = estimate.context_bytes
        other_card = sum(part.bytes for part in estimate.card if part.name == "other_card")
        beyond[OUTSIDE] = estimate.outside_bytes - other_card
    own = estimate.peak_allocated_bytes + sum(beyond.values())
    beyond[OTHER_RANK] = metric.of(estimate) - own
    if limits.upper:
        beyond[UNCERTAIN] = metric.of(estimate, upper=True) - metric.of(estimate)
    return beyond


def _heaviest_line(estimate: Estimate) -> str | None:
    return next((line for line in estimate.breakdown.source_line if _LINE.fullmatch(line)), None)
