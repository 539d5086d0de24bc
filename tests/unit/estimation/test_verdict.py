"""What the card must have beyond what the replay shows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_sample import training
from xmem.devices.gpus import find_device
from xmem.estimation.estimate import CardPart
from xmem.estimation.move import move
from xmem.estimation.need import memory_needed, replay_without_limit
from xmem.estimation.observation import observe
from xmem.estimation.question import AS_RECORDED, ask
from xmem.estimation.verdict import Growth, Unreplayed, judge, most_unreplayed
from xmem.simulation.replay import Replay, Requests, replay

MIB = 1 << 20
SIZES = st.integers(0, 1 << 45)


@given(seen=SIZES, instead_of=SIZES, of=SIZES)
def test_growth_keeps_the_ratio_and_never_shrinks(seen: int, instead_of: int, of: int) -> None:
    grown = Growth(seen, instead_of).of(of)
    assert grown >= of
    assert Growth(seen, instead_of).of(instead_of) == (max(seen, instead_of) if instead_of else instead_of)
    if instead_of and seen >= instead_of:
        assert 0 <= grown * instead_of - of * seen < instead_of  # rounded up


@pytest.fixture(scope="module")
def run():  # type: ignore[no-untyped-def]
    moved = move(observe(training().bytes()), ask(gpu="rtx-3060"))
    return replay_without_limit(moved, AS_RECORDED)


def judged(run, capacity_bytes: int, unreplayed: Unreplayed):  # type: ignore[no-untyped-def]
    device = dataclasses.replace(find_device("rtx-3060"), total_memory_bytes=capacity_bytes)
    return judge(run.moved.requests, run.replay, run.settings.options, device, unreplayed)


def test_a_gpu_fits_exactly_what_is_needed_and_no_byte_less(run) -> None:
    nccl = Unreplayed(outside=(CardPart("nccl", 300 * MIB, "buffers"),))
    need = judged(run, 1 << 40, nccl).need_bytes
    context = find_device("rtx-3060").context_bytes
    assert need == run.replay.peak_reserved.bytes + context + 300 * MIB
    assert judged(run, need, nccl).fits is True
    least = run.replay.peak_requested.bytes + context + 300 * MIB
    assert judged(run, least - 1, nccl).fits is False


def test_what_the_replay_missed_counts_as_reserved(run) -> None:
    ours = run.replay.peak_reserved.bytes
    verdict = judged(run, 1 << 40, Unreplayed(allocator=Growth(ours + 5 * MIB, ours)))
    assert (verdict.missed_bytes, verdict.reserved_bytes) == (5 * MIB, ours + 5 * MIB)
    fewer = judged(run, 1 << 40, Unreplayed(allocator=Growth(ours - 5 * MIB, ours)))
    assert (fewer.missed_bytes, fewer.reserved_bytes) == (0, ours)


def test_the_fullest_card_decides(run) -> None:
    own = judged(run, 1 << 40, Unreplayed()).need_bytes
    fuller = Unreplayed(fullest=Growth(own + 7 * MIB, own))
    verdict = judged(run, 1 << 40, fuller)
    assert (verdict.need_bytes, verdict.other_card_bytes) == (own + 7 * MIB, 7 * MIB)
    assert judged(run, own + 7 * MIB, fuller).fits is True
    assert judged(run, own + 7 * MIB - 1, fuller).fits is False


def test_of_several_runs_the_most_counts() -> None:
    small = Unreplayed((CardPart("nccl", 1, ""),), Growth(11, 10), Growth(30, 10))
    large = Unreplayed((CardPart("nccl", 2, ""),), Growth(12, 10), Growth())
    assert most_unreplayed([small, large]) == Unreplayed(large.outside, large.allocator, small.fullest)


def test_what_a_run_held_beside_its_replay_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"ranks": [{"devices": [{"device": 0, "peak_reserved_bytes": 64 * MIB}]}]}
    observed = observe(training().with_metadata(measured=measured).bytes())
    replays: list[Requests] = []

    def counting(requests: Requests, **options: Any) -> Replay:
        replays.append(requests)
        return replay(requests, **options)

    monkeypatch.setattr("xmem.estimation.need.replay_requests", counting)
    settings = ("expandable_segments:True", "max_split_size_mb:64", "garbage_collection_threshold:0.8")
    needs = [memory_needed(observed, ask(alloc_conf=setting)) for setting in settings]
    assert len(replays) == 4  # one for each, and one of the run as it was recorded
    assert all(need.peak_reserved_bytes >= 64 * MIB for need in needs[1:])
