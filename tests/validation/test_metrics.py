"""The paper's metrics on runs small enough to compute by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from run_samples import MB, TOTAL, run, said

from xmem.validation.estimates import published_estimate
from xmem.validation.metrics import judge, judge_all, second_round_limit, summarize


def test_error_is_relative_to_the_truth() -> None:
    judged = judge(run(1000), said(950))
    assert judged.signed_error == pytest.approx(-0.05)
    assert judged.error == pytest.approx(0.05)


def test_a_run_that_failed_has_no_error() -> None:
    judged = judge(run(9900, failed=True), said(12000, oom=True))
    assert judged.error is None
    assert judged.verdict_is_right
    assert judged.second_round == "not_run"
    assert not judged.failed
    assert judged.conserved_bytes == TOTAL


@pytest.mark.parametrize(
    ("estimate_mb", "context_mb", "fails"), [(10_000, 0, False), (10_001, 0, True), (9_950, 100, True)]
)
def test_without_a_verdict_equation_1_decides(estimate_mb: int, context_mb: int, fails: bool) -> None:
    assert judge(run(9000), said(estimate_mb), context_mb * MB).predicts_oom is fails


def test_a_false_alarm_and_a_missed_failure_lose_the_whole_gpu() -> None:
    for judged in (
        judge(run(9000), said(9500, oom=True)),
        judge(run(9900, failed=True), said(9500, oom=False)),
    ):
        assert not judged.verdict_is_right
        assert judged.failed
        assert judged.second_round == "not_run"
        assert judged.conserved_bytes == -TOTAL


def test_the_limit_is_in_whole_per_cents_of_the_gpu() -> None:
    assert second_round_limit(1_149 * MB, TOTAL) == 1_100 * MB
    assert second_round_limit(1_151 * MB, TOTAL) == 1_200 * MB


def test_a_limit_of_the_peak_is_enough() -> None:
    judged = judge(run(1100), said(1149))
    assert (judged.second_round, judged.second_round_basis) == ("passed", "peak")
    assert judged.conserved_bytes == TOTAL - 1149 * MB


def test_the_context_is_part_of_the_limit_but_not_of_the_estimate() -> None:
    assert judge(run(1100), said(1000)).second_round == "failed"
    judged = judge(run(1100), said(1000), 60 * MB)
    assert judged.second_round == "passed"
    assert judged.error == pytest.approx(100 / 1100)


def test_rounding_alone_can_fail_an_estimate_that_is_too_high() -> None:
    judged = judge(run(1120), said(1130))
    assert (judged.second_round, judged.second_round_basis) == ("failed", "unproven")
    assert judged.conserved_bytes == -TOTAL


def test_a_limit_under_which_the_run_was_seen_to_finish_is_enough() -> None:
    seen = run(2000, xmem_mb=1500, xmem_failed=False)
    judged = judge(seen, said(1600))
    assert (judged.second_round, judged.second_round_basis) == ("passed", "published_limit")
    assert judge(seen, said(1400)).second_round == "failed"
    assert judge(run(2000, xmem_mb=1500, xmem_failed=True), said(1600)).second_round == "failed"


def test_the_published_second_run_decides_for_xmem_itself() -> None:
    passed = run(2000, xmem_mb=1500, xmem_failed=False)
    failed = run(2000, xmem_mb=2500, xmem_failed=True)
    for measured, outcome in ((passed, "passed"), (failed, "failed")):
        estimate = published_estimate("xMem", measured)
        assert estimate is not None
        judged = judge(measured, estimate)
        assert (judged.second_round, judged.second_round_basis) == (outcome, "published_run")


def test_xmem_foresaw_failure_where_no_second_run_was_made() -> None:
    estimate = published_estimate("xMem", run(9000, xmem_mb=9500))
    assert estimate is not None
    assert estimate.estimated_oom
    assert published_estimate("DNNMem", run()) is None


def test_summary_by_hand() -> None:
    judged = [
        judge(run(1000), said(1100)),  # +10%, passed
        judge(run(1000), said(980)),  # -2%; the limit is 1000 MB: passed
        judge(run(1000), said(900)),  # -10%, failed
        judge(run(2000), said(2600)),  # +30%, passed
        judge(run(9900, failed=True), said(9999, oom=True)),  # foreseen
    ]
    summary = summarize(judged, without_estimate=2)
    assert summary.runs == 5
    assert summary.without_estimate == 2
    assert summary.measured_runs == 4
    assert summary.median_relative_error == pytest.approx(0.10)
    assert summary.mean_relative_error == pytest.approx(0.13)
    # Errors 2, 10, 10, 30: place 0.95 * 3 = 2.85 lies at 10 + 0.85 * 20.
    assert summary.p95_relative_error == pytest.approx(0.27)
    assert summary.max_relative_error == pytest.approx(0.30)
    assert summary.median_signed_error == pytest.approx(0.04)
    assert summary.below_truth == 2
    assert (summary.failures, summary.failures_unproven) == (1, 1)
    assert summary.failure_probability == pytest.approx(0.2)
    assert (summary.real_ooms, summary.ooms_foreseen, summary.false_ooms) == (1, 1, 0)
    # 8900 + 9020 - 10000 + 7400 + 10000 MB over five.
    assert summary.conserved_bytes == pytest.approx(5064 * MB)


def test_summary_of_nothing() -> None:
    summary = summarize([])
    assert summary.median_relative_error is None
    assert summary.failure_probability is None
    assert summary.conserved_bytes is None


def test_runtime_is_the_median_of_what_is_known() -> None:
    judged = [judge(run(), replace(said(1000), seconds=seconds)) for seconds in (1.0, 3.0, None)]
    assert summarize(judged).median_seconds == 2.0


def test_runs_without_an_estimate_are_kept_with_the_reason() -> None:
    first, second = run(batch=1), run(batch=2)
    answers = {first.identity: said(1000, of=first), second.identity: replace(said(None), note="too large")}
    result = judge_all("phantom", [first, second], lambda measured: answers.get(measured.identity))
    assert [row.run for row in result.rows] == [first]
    assert result.unanswered == ((second, "too large"),)
    assert result.summary.without_estimate == 1
