"""The search for advice: replays of every candidate, and of the best ones together."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from xmem.advice.candidates import Candidate, candidates
from xmem.advice.remedies import Advice, Advised, Combination
from xmem.advice.trial import Trial, TrialOutcome
from xmem.advice.tuning import single_settings
from xmem.errors import XmemError
from xmem.estimation.analysis import Analysis
from xmem.simulation import alloc_conf as allocator_settings
from xmem.whatif import ChangedRun, parse_whatif

DEFAULT_BUDGET_S = 10.0
PAGE_BUDGET_S = 3.0
"""Budget for the advice on a page, since users wait: large runs only try remedies with most at stake."""
_WORTHWHILE = 0.005  # share of the peak; a remedy that adds less to a combination is left out of it
_ORDER = (
    "set_to_none",
    "precision",
    "optimizer",
    "zero_grad",
    "release",
    "checkpoint",
    "chunk_loss",
)
"""Order in which what-ifs are combined: precision and optimizers need the run as recorded."""


def advise(analysis: Analysis, *, budget_s: float = DEFAULT_BUDGET_S) -> Advised:
    """Find remedies for the memory at the peak, by replay.

    Args:
        analysis: Analysis of the job, with or without a device.
        budget_s: Seconds after which no further remedy is tried; the result lists those left out.
    """
    return _Search(analysis, time.monotonic() + budget_s).advised()


_BEGINS_LATE = (
    "the trace begins in the middle of the run, so it does not show what a change would save: record from "
    "the start of the process; xmem-fast tune tells what is sure, and estimate --what-if gives an interval"
)


class _Search:
    def __init__(self, analysis: Analysis, deadline_s: float) -> None:
        self._analysis = analysis
        self._deadline_s = deadline_s
        self._trial = Trial.of(analysis)
        self._before = TrialOutcome(
            analysis.verdict.reserved_bytes,
            analysis.replay.peak_allocated.bytes,
            analysis.verdict.need_bytes,
            None if analysis.estimate.verdict is None else analysis.estimate.verdict.fits,
        )
        stages = analysis.stages
        self._no_setting = stages.settings.why_none_to_try(stages.trace)
        self._tried = 0
        self._refused: list[tuple[str, str]] = []
        self._left_out: list[str] = []

    def advised(self) -> Advised:
        """Try all candidates, then combine the best; none for a run whose reserved memory does not stem from
        what its trace shows."""
        warm = self._analysis.stages.warm
        if warm is not None and warm.begins_late:
            self._refused.append(("any", _BEGINS_LATE))
            return self._of([], None, frozenset())
        found = []
        for candidate in candidates(self._analysis, self._trial):
            if self._is_late():
                self._left_out.append(candidate.what_if)
                continue
            advice = self._changed(candidate)
            if advice is not None:
                found.append(advice)
        if self._no_setting is not None:
            self._refused.append(("alloc_conf", self._no_setting))
        setting = self._setting(self._trial.start)
        if setting is not None:
            found.append(self._of_setting(*setting))
        helpful = sorted(
            (each for each in found if self._helps(each)),
            key=lambda each: (-each.saved_bytes, -each.saved_allocated_bytes),
        )
        combination, taken = self._combined(helpful)
        return self._of(helpful, combination, taken)

    def _of(
        self, helpful: Sequence[Advice], combination: Combination | None, taken: frozenset[str]
    ) -> Advised:
        estimate = self._analysis.estimate
        return Advised(
            peak_reserved_bytes=self._before.peak_reserved_bytes,
            peak_allocated_bytes=self._before.peak_allocated_bytes,
            device_peak_bytes=estimate.device_peak_bytes,
            fits=self._before.fits,
            advice=tuple(replace(each, in_combination=each.text in taken) for each in helpful),
            combination=combination,
            tried=self._tried,
            refused=tuple(self._refused),
            left_out=tuple(self._left_out),
        )

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline_s

    def _helps(self, advice: Advice) -> bool:
        return advice.saved_bytes > 0 or (advice.fits is True and self._before.fits is False)

    def _changed(self, candidate: Candidate) -> Advice | None:
        """Replay a candidate; return None where it cannot be applied or changes nothing."""
        try:
            run = self._trial.changed([parse_whatif(candidate.what_if)])
        except XmemError as error:
            self._refused.append((candidate.what_if, str(error)))
            return None
        if run.workload is self._trial.start.workload:
            return None
        self._tried += 1
        outcome = self._trial.outcome(self._trial.requests(run))
        return Advice(
            remedy=candidate.remedy,
            what_if=candidate.what_if,
            alloc_conf=None,
            where=candidate.where,
            change=candidate.change,
            cost=candidate.cost,
            **self._figures(outcome),
        )

    def _figures(self, outcome: TrialOutcome) -> dict[str, Any]:
        return {
            "saved_bytes": self._before.peak_reserved_bytes - outcome.peak_reserved_bytes,
            "saved_allocated_bytes": self._before.peak_allocated_bytes - outcome.peak_allocated_bytes,
            "peak_reserved_bytes": outcome.peak_reserved_bytes,
            "peak_allocated_bytes": outcome.peak_allocated_bytes,
            "device_peak_bytes": outcome.device_peak_bytes,
            "fits": outcome.fits,
        }

    def _setting(self, run: ChangedRun) -> tuple[str, TrialOutcome] | None:
        """Return the additional allocator setting with which a run takes least; None if none is left."""
        if self._no_setting is not None:
            return None
        target = self._analysis.estimate.target
        requests = self._trial.requests(run)

        def replayed(setting: str) -> tuple[str, TrialOutcome] | None:
            if self._is_late():
                return None
            text = ",".join(filter(None, [target.alloc_conf, setting]))
            return text, self._trial.outcome(requests, allocator_settings.parse(text, target.torch_version))

        settings = [
            setting
            for setting in single_settings(self._analysis.stages.settings.settings_of)
            if setting.partition(":")[0] not in target.alloc_conf
        ]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
            outcomes = list(threads.map(replayed, settings))
        tried = [outcome for outcome in outcomes if outcome is not None]
        self._tried += len(tried)
        self._left_out += [
            setting for setting, outcome in zip(settings, outcomes, strict=True) if outcome is None
        ]
        return min(tried, key=lambda outcome: outcome[1].peak_reserved_bytes, default=None)

    def _of_setting(self, setting: str, outcome: TrialOutcome) -> Advice:
        return Advice(
            remedy="alloc_conf",
            what_if=None,
            alloc_conf=setting,
            where=None,
            change=f"PYTORCH_CUDA_ALLOC_CONF={setting}",
            cost="a different number of calls to the device: xmem-fast tune counts them",
            **self._figures(outcome),
        )

    def _combined(self, helpful: Sequence[Advice]) -> tuple[Combination | None, frozenset[str]]:
        """Combine the best remedies, keeping each that saves something beside those before it."""
        least_bytes = _WORTHWHILE * self._before.peak_reserved_bytes
        taken: list[str] = []
        run, outcome = self._trial.start, self._before
        for advice in helpful:
            if advice.what_if is None or self._is_late():
                continue
            together = sorted([*taken, advice.what_if], key=_place)
            try:
                changed = self._trial.changed([parse_whatif(text) for text in together])
            except XmemError:
                continue  # the memory that it changes is gone
            tried = self._trial.outcome(self._trial.requests(changed))
            if outcome.peak_reserved_bytes - tried.peak_reserved_bytes >= least_bytes:
                taken, run, outcome = together, changed, tried
        alloc_conf = None
        setting = self._setting(run) if taken else None
        if setting and outcome.peak_reserved_bytes - setting[1].peak_reserved_bytes >= least_bytes:
            alloc_conf, outcome = setting
        if len(taken) + (alloc_conf is not None) < 2:
            return None, frozenset()
        combination = Combination(what_if=tuple(taken), alloc_conf=alloc_conf, **self._figures(outcome))
        return combination, frozenset([*taken, *([alloc_conf] if alloc_conf else [])])


def _place(what_if: str) -> int:
    return _ORDER.index(what_if.partition("=")[0])
