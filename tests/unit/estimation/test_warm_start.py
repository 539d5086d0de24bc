"""The allocator that a GPU's trace began with, rebuilt from addresses and totals."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import xmem
from command_line import xmem_fast
from xmem.estimation.observation import observe
from xmem.estimation.warm_start import Warm, least_requests, warm_start_of
from xmem.simulation.alloc_conf import parse
from xmem.simulation.replay import NEVER, Replay, Requests, make_requests, replay
from xmem.testing.trace_builder import TraceBuilder

from .test_gpu_traces import two_steps

MIB = 1 << 20
TRACES = Path(os.environ.get("XMEM_SHARED", Path(__file__).parents[3].parent / "shared")) / "data" / "traces"
WITH_TOTALS = (
    "a100_particle_transformer_forward_b512",
    "ddp_training_v100",
    "h100_bert_small_inference",
    "h100_qwen_inference",
    "rocm_bert_small_inference",
    "t4_toy_training_amp",
    "t4_toy_training_fp32",
)
SETTINGS = ("expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8")


class Job:
    """A training run: state that stays, then iterations that are alike, of which the first takes more."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self._events: list[tuple[int, int, int]] = []
        self._time = 0
        for _ in range(chance.randint(3, 30)):
            self._add(chance.choice([4_096, 700 * 1024, 3 * MIB, 17 * MIB]), NEVER)
        sizes = [chance.choice([1_024, 300 * 1024, 2 * MIB, 9 * MIB, 33 * MIB]) for _ in range(60)]
        self.iterations = []
        for iteration in range(6):
            self.iterations.append(self._time)
            alive: list[int] = []
            for size in [*([120 * MIB] if iteration == 0 else []), *sizes]:
                alive.append(self._add(size, -1))
                if len(alive) > 20 or (alive and chance.random() < 0.3):
                    self._free(alive.pop(chance.randrange(len(alive))))
            for block in alive:
                self._free(block)
        self.end = self._time
        columns = np.array(self._events, np.int64)
        self.alloc, self.free, self.size_bytes = columns[:, 0], columns[:, 1], columns[:, 2]

    def _add(self, size: int, free: int) -> int:
        self._time += 1
        self._events.append((self._time, free, size))
        return len(self._events) - 1

    def _free(self, block: int) -> None:
        self._time += 1
        begin, _, size = self._events[block]
        self._events[block] = (begin, self._time, size)

    def requests(self) -> Requests:
        return make_requests(self.alloc, self.free, self.size_bytes)

    def reserved(self, alloc_conf: str) -> int:
        return replay(self.requests(), options=parse(alloc_conf, "2.13")).peak_reserved.bytes

    def seen_from(self, begin: int) -> bytes:
        """The rest of the run as a profiler that starts at some request writes it."""
        requests = self.requests()
        whole = replay(requests)
        trace = TraceBuilder().operator("aten::mm", 10 * begin, 10 * self.end + 5)
        for at in (begin, self.end):
            trace.annotation("Optimizer.step#SGD.step", 10 * at, 10 * at + 1)
        for row in np.flatnonzero(requests.time_ns > begin).tolist():
            add_event(trace, self, requests, whole, row)
        return trace.bytes()


def add_event(trace: TraceBuilder, job: Job, requests: Requests, whole: Replay, row: int) -> None:
    block, time = int(requests.block[row]), int(requests.time_ns[row])
    size = int(whole.placement.size_bytes[block])
    trace.memory(
        size if time == job.alloc[block] else -size,
        10 * time,
        address=int(whole.placement.address[block]),
        device_type=1,
        device_index=0,
        total_allocated=int(whole.timeline.allocated_bytes[row]),
        total_reserved=int(whole.timeline.reserved_bytes[row]),
    )


def warm(trace: bytes | Path) -> Warm:
    observed = observe(trace)
    found = warm_start_of(observed.recorded, observed.workload)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_run_cut_anywhere_reserves_what_was_counted(seed: int) -> None:
    job = Job(seed)
    begin = random.Random(seed).randint(job.iterations[1], job.iterations[4])
    start = warm(job.seen_from(begin))
    assert start.counted_bytes == job.reserved("")
    assert start.most_bytes == pytest.approx(start.counted_bytes, rel=0.03)
    assert start.agrees


def test_each_bound_of_other_settings_holds_with_its_confidence() -> None:
    asked = answered = below = above = 0
    for seed in range(12):
        job = Job(seed)
        trace = observe(job.seen_from(job.iterations[3] - 7))
        for alloc_conf in SETTINGS:
            estimate = xmem.estimate(trace, alloc_conf=alloc_conf)
            asked += 1
            if estimate.interval is None:
                continue
            answered += 1
            assert any("when the trace began" in each for each in estimate.assumptions)
            below += job.reserved(alloc_conf) < estimate.interval.low_bytes
            above += job.reserved(alloc_conf) > estimate.interval.high_bytes
    assert answered >= 0.9 * asked
    assert below <= 0.1 * answered
    assert above <= 0.1 * answered


def test_what_was_reserved_before_stays_in_the_interval_of_other_settings() -> None:
    job = Job(1)
    trace = job.seen_from(job.iterations[3])
    start = warm(trace)
    estimate = xmem.estimate(trace, alloc_conf="expandable_segments:True")
    assert estimate.interval is not None
    assert estimate.interval.high_bytes >= start.counted_bytes
    assert estimate.interval.low_bytes <= start.least_bytes
    assert "recorded" in estimate.interval.basis


def test_a_script_without_a_block_from_before_has_its_place_free() -> None:
    job = Job(2)
    begin = job.iterations[3] - 7
    observed = observe(job.seen_from(begin))
    start = warm_start_of(observed.recorded, observed.workload)
    assert start is not None
    older = (observed.workload.flags & xmem.trace.blocks.BORN_BEFORE) != 0
    assert older.any()
    changed = observed.workload.select(~older)
    peaks = [
        replay(start.start.most(workload), options=start.options) for workload in (observed.workload, changed)
    ]
    assert peaks[1].peak_reserved.bytes == peaks[0].peak_reserved.bytes
    assert peaks[1].timeline.allocated_bytes[-1] <= peaks[0].timeline.allocated_bytes[-1]


def test_memory_of_unknown_sizes_is_not_rounded_in_the_lower_bound() -> None:
    job = Job(3)
    observed = observe(job.seen_from(job.iterations[3]))
    requests = least_requests(observed.workload)
    older = requests.size_bytes[: int((requests.time_ns < observed.workload.alloc_ns.min()).sum())]
    assert older.max() <= 128 * MIB
    found = [
        replay(make_requests(np.zeros(len(older), np.int64), np.full(len(older), NEVER), older), options=each)
        for each in (parse("", "2.13"), parse("roundup_power2_divisions:1", "2.13"))
    ]
    assert found[1].peak_reserved.bytes <= found[0].peak_reserved.bytes + 2 * older[-1]


def impossible() -> bytes:
    """A block of 3 MiB of an allocator that holds 4 MiB: no segment of PyTorch's defaults is so small."""
    return two_steps(4).bytes()


def test_a_start_that_cannot_be_placed_gives_no_interval_of_another_run() -> None:
    assert xmem.estimate(impossible()).interval is not None  # of the run as it was: it was counted
    estimate = xmem.estimate(impossible(), alloc_conf="expandable_segments:True", gpu="rtx-3060")
    assert estimate.interval is None
    assert any("cannot be placed" in each and "no interval" in each for each in estimate.assumptions)
    assert estimate.doubt is not None


def test_tune_refuses_a_start_that_cannot_be_placed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(impossible())
    result = xmem_fast("tune", path, "--gpu", "rtx-3060")
    assert result.exit_code == 3
    assert "cannot be placed" in result.stderr
    assert "record from the start of the process" in result.stderr


def test_tune_tells_what_is_sure_from_what_may_be(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    job = Job(1)
    path.write_bytes(job.seen_from(job.iterations[3]))
    result = xmem_fast("tune", path, "--gpu", "rtx-3060", "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["defaults"]["peak_reserved_bytes"] == pytest.approx(job.reserved(""), rel=0.03)
    assert told["best"] is None  # all that was reserved may have been in use at one time
    assert told["possible"]["defaults"]["peak_reserved_bytes"] < told["defaults"]["peak_reserved_bytes"]
    text = xmem_fast("tune", path, "--gpu", "rtx-3060").stdout
    assert "The trace begins in the middle of the run" in text


def test_no_advice_is_given_where_savings_would_be_imagined(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for begin, given in ((0, True), (Job(7).iterations[3], False)):
        path.write_bytes(Job(7).seen_from(begin))
        told = json.loads(xmem_fast("advise", path, "--gpu", "rtx-3060", "--json").stdout)
        assert (told["tried"] > 0) is given
    assert told["advice"] == []
    assert "middle of the run" in str(told["refused"])
    assert "No advice: the trace begins" in xmem_fast("advise", path, "--gpu", "rtx-3060").stdout


def test_tune_says_nothing_of_a_beginning_that_it_saw(tmp_path: Path) -> None:
    trace = TraceBuilder().with_metadata(device_requests=1, iterations=1)
    trace.iteration(0, 0, 200).alloc(0x1000, 400 * MIB, 2).annotation("Optimizer.step#SGD.step", 110, 120)
    path = trace.write(tmp_path / "trace.json")
    told = json.loads(xmem_fast("tune", path, "--gpu", "rtx-3060", "--json").stdout)
    assert told["possible"] is None


@pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces here")
@pytest.mark.parametrize("name", WITH_TOTALS)
def test_real_traces_reserve_what_their_allocator_counted(name: str) -> None:
    start = warm(TRACES / f"{name}.json.gz")
    assert start.most_bytes == start.counted_bytes
    opened = start.open(
        start.workload, replace(parse("expandable_segments:True", "2.13"), sizes_with_slack=True)
    )
    assert 0 < opened.least_bytes <= opened.most_bytes
