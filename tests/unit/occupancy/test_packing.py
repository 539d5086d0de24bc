"""Packing of jobs whose outcome can be worked out by hand, and what must hold for any mix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmem.errors import ConfigError
from xmem.occupancy.packing import POLICIES, Job, Slowdown, compare, simulate

GIB = 1 << 30
FREE = Slowdown(0.0, 0.0, 0.0, 0.0)


def _job(name="job", seconds=10.0, occupancy=0.4, utilisation=0.6, memory=(2 * GIB,), **more) -> Job:
    return Job(name, seconds, occupancy, utilisation, memory, **more)


def test_slots_run_one_job_a_gpu() -> None:
    outcome = simulate([_job()] * 4, "slot", gpus=2, memory_bytes=8 * GIB)
    assert outcome.makespan_seconds == pytest.approx(20)
    assert outcome.utilisation == pytest.approx(0.6)
    assert outcome.occupancy == pytest.approx(0.4)
    assert outcome.memory == pytest.approx(0.25)
    assert (outcome.kills, outcome.mean_slowdown) == (0, pytest.approx(1.0))
    assert outcome.mean_wait_seconds == pytest.approx(5.0)


def test_occupancy_admits_two_jobs_where_utilisation_does_not() -> None:
    jobs = [_job()] * 4
    packed = simulate(jobs, "occupancy", gpus=2, memory_bytes=8 * GIB)
    # Two of 40% a GPU: 10% and four fifths of the way to 20% longer.
    assert packed.makespan_seconds == pytest.approx(10 * 1.18)
    assert packed.utilisation == pytest.approx(1 - 0.4**2)
    by_utilisation = simulate(jobs, "utilisation", gpus=2, memory_bytes=8 * GIB)
    assert by_utilisation.makespan_seconds == pytest.approx(20)


def test_a_third_job_waits_until_occupancy_is_left() -> None:
    outcome = simulate([_job()] * 3, "occupancy", gpus=1, memory_bytes=8 * GIB, slowdown=FREE)
    assert outcome.makespan_seconds == pytest.approx(20)
    assert outcome.mean_wait_seconds == pytest.approx(10 / 3)


def test_more_than_the_gpu_has_takes_turns() -> None:
    jobs = [_job(occupancy=0.5, true_occupancy=0.9)] * 2
    outcome = simulate(jobs, "occupancy", gpus=1, memory_bytes=8 * GIB, slowdown=FREE)
    assert outcome.makespan_seconds == pytest.approx(18)
    assert outcome.mean_slowdown == pytest.approx(1.8)


def test_memory_as_a_second_constraint_spares_the_kills() -> None:
    jobs = [_job(memory=(5 * GIB,))] * 2
    blind = simulate(jobs, "occupancy", gpus=1, memory_bytes=8 * GIB, slowdown=FREE)
    assert blind.kills == 1
    seeing = simulate(jobs, "memory_and_occupancy", gpus=1, memory_bytes=8 * GIB, slowdown=FREE)
    assert seeing.kills == 0
    assert seeing.makespan_seconds == pytest.approx(20)
    assert blind.makespan_seconds >= seeing.makespan_seconds


def test_memory_over_time_packs_what_peaks_do_not() -> None:
    early, late = (6 * GIB, *[1 * GIB] * 9), (*[1 * GIB] * 9, 6 * GIB)
    jobs = [_job("early", memory=early), _job("late", memory=late)]
    peaks = simulate(jobs, "memory_and_occupancy", gpus=1, memory_bytes=8 * GIB, slowdown=FREE)
    times = simulate(jobs, "memory_over_time_and_occupancy", gpus=1, memory_bytes=8 * GIB, slowdown=FREE)
    assert peaks.makespan_seconds == pytest.approx(20)
    assert times.makespan_seconds == pytest.approx(10)
    assert times.kills == 0
    # Peaks that meet are kept apart.
    both = [_job("early", memory=early)] * 2
    apart = simulate(both, "memory_over_time_and_occupancy", gpus=1, memory_bytes=8 * GIB, slowdown=FREE)
    assert apart.kills == 0
    assert 10 < apart.makespan_seconds < 20


def test_a_memory_prediction_that_is_too_low_ends_in_a_kill() -> None:
    jobs = [_job(memory=(3 * GIB,), true_memory_bytes=(3 * GIB, 5 * GIB))] * 2
    outcome = simulate(jobs, "memory_and_occupancy", gpus=1, memory_bytes=8 * GIB, slowdown=FREE)
    assert outcome.kills == 1
    assert outcome.makespan_seconds == pytest.approx(20)


def test_what_makes_no_sense_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="fits no GPU"):
        simulate([_job(memory=(9 * GIB,))], "slot", memory_bytes=8 * GIB)
    with pytest.raises(ConfigError, match="unknown policy"):
        simulate([_job()], "none", memory_bytes=8 * GIB)
    with pytest.raises(ConfigError, match="nothing to pack"):
        simulate([], "slot", memory_bytes=8 * GIB)
    with pytest.raises(ConfigError, match="occupancy"):
        _job(occupancy=40.0)
    with pytest.raises(ConfigError, match="seconds"):
        _job(seconds=0.0)


mixes = st.lists(
    st.builds(
        Job,
        st.just("job"),
        st.floats(1, 100),
        st.floats(0.05, 1),
        st.floats(0.1, 1),
        st.lists(st.integers(GIB // 8, 8 * GIB), min_size=1, max_size=5).map(tuple),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(mixes, st.sampled_from(POLICIES))
def test_any_mix(jobs: list[Job], policy: str) -> None:
    outcome = simulate(jobs, policy, gpus=2, memory_bytes=8 * GIB)
    alone = sum(job.seconds for job in jobs)
    assert outcome.makespan_seconds >= max(job.seconds for job in jobs) - 1e-6
    assert outcome.makespan_seconds <= 2.5 * alone
    assert 0 < outcome.utilisation <= 1 + 1e-9
    assert outcome.mean_slowdown >= 1 - 1e-9
    if policy in ("slot", "memory_and_occupancy"):  # those whose promise does not depend on slow-downs
        assert outcome.kills == 0
    if policy == "slot":
        busy = sum(job.seconds * job.utilisation for job in jobs)
        assert outcome.utilisation * outcome.makespan_seconds * 2 == pytest.approx(busy)


def test_policies_are_compared_on_the_same_mixes() -> None:
    chance = np.random.default_rng(0)
    batches = [
        [
            _job(seconds=float(chance.uniform(5, 60)), occupancy=float(chance.uniform(0.1, 0.6)))
            for _ in range(20)
        ]
        for _ in range(5)
    ]
    found = compare(batches, gpus=4, memory_bytes=8 * GIB)
    assert all(len(outcomes) == 5 for outcomes in found.values())
    for slot, packed in zip(found["slot"], found["memory_and_occupancy"], strict=True):
        assert packed.makespan_seconds < slot.makespan_seconds
        assert packed.utilisation > slot.utilisation
