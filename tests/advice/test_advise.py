"""Advice on a run computed by hand: every saving is what the replay of the changed run says."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import xmem
from whatif.nested_sample import RESULT, nested
from whatif.sample import linear
from xmem.advice import Advised, advise
from xmem.estimation.observation import Observation, observe
from xmem.simulation.alloc_conf import AllocatorOptions

MIB = 1 << 20


@pytest.fixture(scope="module")
def observed() -> Observation:
    """Three iterations of the nested sample, whose RESULT a name keeps into the next."""
    return observe(nested(iterations=3).bytes())


@pytest.fixture(scope="module")
def advised(observed: Observation) -> Advised:
    return advise(xmem.analyze(observed))


def test_every_saving_is_that_of_the_estimate(observed: Observation, advised: Advised) -> None:
    before = xmem.estimate(observed)
    assert advised.peak_reserved_bytes == before.peak_reserved_bytes
    assert len(advised.advice) >= 2
    for advice in advised.advice:
        changes = [] if advice.what_if is None else [advice.what_if]
        after = xmem.estimate(observed, what_if=changes, alloc_conf=advice.alloc_conf)
        assert advice.peak_reserved_bytes == after.peak_reserved_bytes
        assert advice.peak_allocated_bytes == after.peak_allocated_bytes
        assert advice.saved_bytes == before.peak_reserved_bytes - after.peak_reserved_bytes
        assert advice.saved_allocated_bytes == before.peak_allocated_bytes - after.peak_allocated_bytes


def test_the_combination_is_that_of_the_estimate(observed: Observation, advised: Advised) -> None:
    combination = advised.combination
    assert combination is not None
    after = xmem.estimate(observed, what_if=combination.what_if, alloc_conf=combination.alloc_conf)
    assert combination.peak_reserved_bytes == after.peak_reserved_bytes
    assert combination.saved_bytes > advised.advice[0].saved_bytes
    taken = {advice.text for advice in advised.advice if advice.in_combination}
    assert taken <= {*combination.what_if, combination.alloc_conf}


def test_the_most_helpful_comes_first_and_all_help(advised: Advised) -> None:
    saved = [advice.saved_bytes for advice in advised.advice]
    assert saved == sorted(saved, reverse=True)
    assert min(saved) > 0
    assert advised.tried > len(saved)


def test_what_is_at_the_peak_is_what_is_advised(advised: Advised) -> None:
    # the last iteration's RESULT is there while FIRST, SECOND and RESULT are made
    by_what_if = {advice.what_if: advice for advice in advised.advice}
    release = by_what_if["release=/job/train.py:8"]
    assert release.saved_bytes == RESULT
    assert "16.00 MiB" in release.change
    assert release.where == "/job/train.py:8"
    assert "after loss.backward()" in release.change


def test_what_saves_nothing_is_not_advised(observed: Observation, advised: Advised) -> None:
    # FIRST and SECOND end with the block, but the peak is there already when it makes RESULT
    change = "checkpoint=Net.block"
    assert xmem.estimate(observed, what_if=[change]).peak_reserved_bytes >= advised.peak_reserved_bytes
    assert change not in {advice.what_if for advice in advised.advice}
    assert change not in dict(advised.refused)


def test_a_device_says_what_makes_the_job_fit(observed: Observation) -> None:
    best = advise(xmem.analyze(observed)).advice[0]
    context = xmem.estimate(observed, capacity="1GiB").context_bytes
    capacity = context + best.peak_reserved_bytes
    tight = advise(xmem.analyze(observed, capacity=capacity))
    assert (tight.fits, tight.can_fit) == (False, True)
    fitting = {advice.text for advice in tight.advice if advice.fits}
    assert best.text in fitting
    assert advise(xmem.analyze(observed, capacity=context + 4 * MIB)).can_fit is False


def test_what_is_refused_has_its_reason() -> None:
    advised = advise(xmem.analyze(linear(names=False).bytes()))
    reasons = dict(advised.refused)
    assert "does not name parameters" in reasons["zero_grad=after_step"]


def test_without_time_all_is_left_out(observed: Observation) -> None:
    advised = advise(xmem.analyze(observed), budget_s=-1.0)
    assert (advised.advice, advised.tried, advised.combination) == ((), 0, None)
    assert "release=/job/train.py:8" in advised.left_out
    assert "expandable_segments:True" in advised.left_out


def test_modules_by_frames_are_advised_by_one_pattern(observed: Observation) -> None:
    tried = advise(xmem.analyze(nested(marked=False).bytes()), budget_s=-1.0).left_out
    assert "checkpoint=Net_*.Block_*" in tried
    assert "checkpoint=Net.block" in advise(xmem.analyze(observed), budget_s=-1.0).left_out


def test_what_the_caller_changed_is_not_advised_again(observed: Observation, advised: Advised) -> None:
    changed = advise(xmem.analyze(observed, what_if=["release=train.py:8"]))
    assert changed.peak_reserved_bytes < advised.peak_reserved_bytes
    assert "release=/job/train.py:8" not in {advice.what_if for advice in changed.advice}


def test_given_settings_stay(observed: Observation) -> None:
    advised = advise(xmem.analyze(observed, alloc_conf="expandable_segments:True"))
    settings = [advice.alloc_conf for advice in advised.advice if advice.alloc_conf]
    assert all(setting.startswith("expandable_segments:True,") for setting in settings)


def test_json_holds_all_of_it(advised: Advised) -> None:
    data = json.loads(json.dumps(advised.to_json()))
    assert next(iter(data)) == "schema_version"
    assert [advice["what_if"] for advice in data["advice"]] == [advice.what_if for advice in advised.advice]
    assert data["combination"]["saved_bytes"] == advised.combination.saved_bytes  # type: ignore[union-attr]


def test_replays_follow_the_settings_of_the_analysis(
    observed: Observation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xmem.advice import trial

    seen: list[AllocatorOptions] = []
    replay: Callable[..., object] = trial.replay

    def watched(*arguments: object, options: AllocatorOptions, **others: object) -> object:
        seen.append(options)
        return replay(*arguments, options=options, **others)

    monkeypatch.setattr(trial, "replay", watched)
    advise(xmem.analyze(observed, alloc_conf="expandable_segments:True"))
    assert seen
    assert all(options.expandable_segments for options in seen)
