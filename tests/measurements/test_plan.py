"""The plan, the time box, the search and the store, without any process."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.job import Job
from workloads.program_names import PROGRAM_NAMES
from xmem_measure import plan, processes, visit
from xmem_measure.parts import least_memory
from xmem_measure.store import Store, folder_name

MIB = 1 << 20
ENVIRONMENT = {"gpu": "NVIDIA H200", "torch": "2.11.0"}


def test_no_run_is_planned_twice_and_all_parts_are_there() -> None:
    runs = plan.plan()
    assert len({run.key(ENVIRONMENT) for run in runs}) == len(runs)
    assert set(plan.PARTS) == {run.part for run in runs}
    assert runs[0].part == "device"


def test_the_first_minutes_see_every_model_and_most_optimizers() -> None:
    first = [run for run in plan.plan()[:27] if run.part == "training"]
    counts = Counter(run.config["model"] for run in first)
    assert set(counts.values()) == {1}
    assert len(counts) == 20
    assert len({run.config["optimizer"] for run in first if run.config["family"] == "cnn"}) == 5
    assert len({run.config["optimizer"] for run in first if run.config["family"] == "transformer"}) == 4


def test_all_places_precisions_and_layouts_are_planned() -> None:
    configs = [run.config for run in plan.plan() if run.part == "training"]
    assert {config["zero_grad"] for config in configs} == {0, 1, 2}
    assert {config["precision"] for config in configs} == {"default", "tf32", "ieee", "bf16"}
    assert {config.get("channels_last") for config in configs} == {True, False, None}
    # Every configuration is one that a job can be made of again.
    assert all(Job(**config).to_json() == config for config in configs)


def test_programs_are_planned_by_the_names_that_they_have() -> None:
    pytest.importorskip("torch")
    from workloads.programs import PROGRAMS

    assert list(PROGRAMS) == list(PROGRAM_NAMES)
    planned = [run.config["program"] for run in plan.plan() if run.part == "programs"]
    assert planned == list(PROGRAM_NAMES)


def test_a_key_is_of_configuration_and_environment() -> None:
    run = plan.Run("training", {"model": "VGG16", "batch": 2})
    assert run.key(ENVIRONMENT) == plan.Run("training", {"batch": 2, "model": "VGG16"}).key(dict(ENVIRONMENT))
    assert run.key(ENVIRONMENT) != run.key({**ENVIRONMENT, "torch": "2.12.0"})
    assert run.key(ENVIRONMENT) != plan.Run("operators", run.config).key(ENVIRONMENT)


def test_the_baseline_is_read_when_the_last_process_has_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    readings = iter([900, 700, 500, 500, 400])
    memory: Any = SimpleNamespace(used_bytes=lambda: next(readings))
    assert processes.settled_bytes(memory) == 500


class _Clock:
    """Time that only runs pass."""

    now = 0.0


def _visit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, minutes: float, outcome: str = "done", pace: float = 1.0
) -> tuple[visit.Visit, _Clock]:
    clock = _Clock()

    class Child:
        def __init__(self, _zygote: object, run: plan.Run, *_: object, **__: object) -> None:
            self.run, self.pid = run, 1

        def finish(self, deadline: float, _memory: object = None) -> dict[str, Any]:
            if self.run.part == "device":
                return {"outcome": "done", "gpu": "Test GPU", "uuid": "", "total_memory_bytes": 1 << 34}
            clock.now += self.run.seconds * pace
            if clock.now > deadline:
                clock.now = deadline
                return {"outcome": "timeout"}
            return {"outcome": outcome}

    monkeypatch.setattr(visit, "Child", Child)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    zygote: Any = SimpleNamespace(versions={"torch": "2.11.0"}, missing={})
    return visit.Visit(zygote, tmp_path, minutes * 60, dry_run=True), clock


def test_the_time_box_is_kept_when_runs_take_longer_than_expected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_visit, clock = _visit(monkeypatch, tmp_path, minutes=2, pace=3.0)
    runs = [run for run in plan.plan() if run.part in ("training", "operators")]
    a_visit.measure(a_visit.remaining(runs))
    assert clock.now <= 120
    # 3.5 s three times over: the box is used, and in order.
    done = [record["part"] for record in a_visit.records]
    assert 9 <= len(done) <= 12
    assert len(a_visit.remaining(runs)) == len(runs) - len(done)


def test_a_run_that_would_not_end_in_time_gives_way_to_a_shorter_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a_visit, _ = _visit(monkeypatch, tmp_path, minutes=0.1)
    large = plan.Run("training", {"model": "Qwen/Qwen3-4B"})
    small = plan.Run("training", {"model": "VGG16"})
    left = deque([large, small])
    assert a_visit._next_that_fits(left) is small
    assert list(left) == [large]


@pytest.mark.parametrize(
    ("outcome", "again"), [("done", 0), ("out_of_memory", 0), ("failed", 1), ("timeout", 1)]
)
def test_failed_runs_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: str, again: int
) -> None:
    a_visit, _ = _visit(monkeypatch, tmp_path, minutes=2, outcome=outcome)
    run = plan.Run("operators", {"model": "VGG16"})
    a_visit.measure([run])
    second, _ = _visit(monkeypatch, tmp_path, minutes=2)
    assert len(second.remaining([run])) == again


def test_runs_that_need_what_is_missing_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    a_visit, _ = _visit(monkeypatch, tmp_path, minutes=2)
    a_visit._zygote.missing["torchvision"] = "no module"
    assert all("torchvision" not in run.needs for run in a_visit.remaining(plan.plan()))


@given(st.integers(4, 1 << 17), st.floats(0.01, 1.0))
def test_the_search_ends_at_the_least_cap_to_one_percent(reserved_mib: int, share: float) -> None:
    reserved, needed = reserved_mib * MIB, int(reserved_mib * MIB * share)
    search = least_memory.search(reserved)
    caps, rounds = next(search), 0
    try:
        while True:
            rounds += 1
            assert rounds < 20
            caps = search.send([least_memory.Trial(cap, cap >= needed) for cap in caps])
    except StopIteration as stop:
        enough, too_little = stop.value
    assert too_little < needed <= enough
    assert enough - too_little <= max(2 * MIB, enough // 100)


def test_a_job_that_never_finishes_has_no_least_memory() -> None:
    search = least_memory.search(100 * MIB)
    caps = next(search)
    with pytest.raises(StopIteration) as stop:
        search.send([least_memory.Trial(cap, False) for cap in caps])
    assert stop.value.value == (0, 0)


def test_a_line_that_a_crash_cut_short_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append({"part": "training", "key": "a", "outcome": "done"})
    path = tmp_path / "training.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"part":"training","key":"b","outc')
    again = Store(tmp_path)
    assert path.read_bytes() == whole
    assert again.is_finished("a")
    assert not again.is_finished("b")


def test_messages_of_errors_are_kept_without_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    Store(tmp_path).append(
        {"part": "training", "key": "a", "outcome": "failed", "error": "no /home/me/libx.so"}
    )
    assert json.loads((tmp_path / "training.jsonl").read_text())["error"] == "no ~/libx.so"


def test_folders_are_named_by_gpu_and_release() -> None:
    assert folder_name("NVIDIA GeForce RTX 3060", "2.6.0+cu124") == "nvidia-geforce-rtx-3060-torch2.6.0"
