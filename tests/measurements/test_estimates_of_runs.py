"""Estimates of measured runs from captures that are there."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from accuracy import captures, estimates, ways
from accuracy.cache import Cache, Record
from accuracy.estimates import COLUMNS, Estimated
from accuracy.runs import MIB, Job, Run
from accuracy.ways import SMALL_BATCHES, WAYS, Laboratory, NotCapturedError
from measured_run import measured
from training_sample import training
from xmem.estimation.need import memory_needed
from xmem.estimation.observation import observe
from xmem.estimation.question import Question
from xmem.validation.estimates import read_estimates

JOB = Job("CNN", "Net", "SGD", 8)
RUN = Run(measured(), JOB)
CUBLAS_BYTES = 8_519_680  # of an RTX 3060


@pytest.fixture
def laboratory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laboratory:
    """No torch is asked for its version, and no phantom GPU need be built."""
    monkeypatch.setattr(Laboratory, "_torch", "2.6.0")
    monkeypatch.setattr(Laboratory, "_phantom_sources", "abcd")
    return Laboratory("python", Cache(tmp_path / "captures"), {})


def put(laboratory: Laboratory, *batches: int) -> None:
    for batch in batches:
        key = laboratory.cpu_key(JOB.at(batch))
        laboratory.cache.put(key, Record("captured", 1.0))
        trace = training(batch * MIB)
        laboratory.cache.trace(key).write_bytes(trace.bytes())


def test_the_fitted_way_is_the_cpu_way_where_both_are_there(laboratory: Laboratory) -> None:
    put(laboratory, *SMALL_BATCHES, 8)
    fitted, cpu = laboratory.ask(RUN, "fitted"), laboratory.ask(RUN, "cpu")
    trace = laboratory.cache.trace(laboratory.cpu_key(JOB))
    assert cpu.reserved_bytes == memory_needed(observe(trace), Question(RUN.device)).peak_reserved_bytes
    assert fitted.reserved_bytes == cpu.reserved_bytes
    assert not fitted.out_of_memory
    assert fitted.low_bytes is None


def test_the_fake_way_is_of_captures_of_its_own(laboratory: Laboratory) -> None:
    put(laboratory, 8)
    key = laboratory.cpu_key(JOB, "fake")
    assert key != laboratory.cpu_key(JOB)
    laboratory.cache.put(key, Record("captured", 1.0))
    laboratory.cache.trace(key).write_bytes(training(16 * MIB).bytes())
    fake, cpu = laboratory.ask(RUN, "fake"), laboratory.ask(RUN, "cpu")
    assert fake.reserved_bytes > cpu.reserved_bytes


def test_a_run_on_a_full_gpu_is_out_of_memory(laboratory: Laboratory) -> None:
    put(laboratory, *SMALL_BATCHES)
    need = laboratory.ask(RUN, "fitted").reserved_bytes
    least_bytes = RUN.device.context_bytes + need
    exact, smaller = (Run(measured(total_bytes=size), JOB) for size in (least_bytes, least_bytes - 2 * MIB))
    assert not laboratory.ask(exact, "fitted").out_of_memory
    assert laboratory.ask(smaller, "fitted").out_of_memory


def test_the_phantom_way_is_what_the_allocator_said(laboratory: Laboratory) -> None:
    laboratory.cache.put(laboratory.phantom_key(RUN), Record("out_of_memory", 1.0, 77))
    laboratory.cache.trace(laboratory.phantom_key(RUN)).write_bytes(training().bytes())
    answer = laboratory.ask(RUN, "phantom")
    assert (answer.reserved_bytes, answer.out_of_memory) == (77, True)


def test_a_capture_that_is_missing_or_failed_is_no_answer(laboratory: Laboratory) -> None:
    put(laboratory, SMALL_BATCHES[0])
    with pytest.raises(NotCapturedError, match=f"not captured: cpu-Net-SGD-b{SMALL_BATCHES[1]}"):
        laboratory.ask(RUN, "fitted")
    laboratory.cache.put(laboratory.cpu_key(JOB), Record("skipped", 600.0, note="took too long"))
    with pytest.raises(NotCapturedError, match="skipped: took too long"):
        laboratory.ask(RUN, "cpu")


def test_an_estimate_holds_what_the_truth_holds(laboratory: Laboratory) -> None:
    put(laboratory, *SMALL_BATCHES)
    rows = list(estimates.estimate_all(laboratory, [RUN], WAYS))
    assert [row.way for row in rows] == list(WAYS)
    phantom, fake, _, fitted = rows
    assert phantom.estimate_bytes is None
    assert phantom.error is None
    assert "not captured" in phantom.note
    assert "not captured: fake-Net" in fake.note
    reserved = laboratory.ask(RUN, "fitted").reserved_bytes
    assert fitted.estimate_bytes == reserved + 26 * MIB
    assert fitted.error == (reserved + 26 * MIB) / (60 * MIB) - 1


def test_policies_are_those_that_changed_the_peak(laboratory: Laboratory) -> None:
    put(laboratory, *SMALL_BATCHES, 8)
    for batch in (*SMALL_BATCHES, 8):
        multiplied = training(batch * MIB).operator("aten::addmm", 22, 28)
        laboratory.cache.trace(laboratory.cpu_key(JOB.at(batch))).write_bytes(multiplied.bytes())
    laboratory.cache.put(laboratory.phantom_key(RUN), Record("captured", 1.0, 40 * MIB))
    laboratory.cache.trace(laboratory.phantom_key(RUN)).write_bytes(training(8 * MIB).bytes())
    rows = {row.way: row.policies for row in estimates.estimate_all(laboratory, [RUN], WAYS)}
    rows.pop("fake")  # there is no such capture
    workspaces = {"add_cublas_workspaces": CUBLAS_BYTES}
    assert rows == {
        "phantom": {},
        "cpu": {"drop_host_memory": -8 * MIB, **workspaces},
        "fitted": workspaces,  # what was dropped of the runs at other batches is not of this one
    }


def test_both_kinds_of_file_say_the_same(tmp_path: Path) -> None:
    policies = {"add_convolution_workspaces": 2 * MIB, "drop_host_memory": -MIB}
    rows = [
        Estimated(RUN, "cpu", 5 * MIB, False, 0.25, None, 6 * MIB, "", policies),
        Estimated(RUN, "phantom", None, None, 0.0, None, None, "not captured"),
    ]
    for name in ("estimates.csv", "estimates.json"):
        estimates.write(rows, tmp_path / name)
        read = read_estimates(tmp_path / name)
        assert [row.estimate_bytes for row in read] == [5 * MIB, None]
        assert [row.policies for row in read] == [policies, {}]
    listed = json.loads((tmp_path / "estimates.json").read_text())
    with (tmp_path / "estimates.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [tuple(row) for row in listed] == [tuple(row) for row in table] == [COLUMNS, COLUMNS]
    assert (listed[0]["estimated_oom"], table[0]["estimated_oom"]) == (False, "false")
    assert (listed[1]["estimate_bytes"], table[1]["estimate_bytes"]) == (None, "")
    assert table[0]["high_bytes"] == str(6 * MIB)


def test_every_model_has_its_turn_before_any_has_two() -> None:
    named = [("a", 9), ("b", 5), ("a", 1), ("b", 50), ("a", 9), ("a", 2), ("c", 7)]
    jobs = [Job("CNN", model, "SGD", batch) for model, batch in named]
    order = [(job.model, job.batch) for job in captures.in_turns(jobs)]
    assert order == [("a", 9), ("b", 5), ("c", 7), ("a", 1), ("b", 50), ("a", 2)]


def test_sources_of_the_jobs_are_part_of_every_name(
    laboratory: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = laboratory.cpu_key(JOB)
    script = tmp_path / "train.py"
    script.write_text("another loop")
    monkeypatch.setattr(ways, "SCRIPT", script)
    after = Laboratory("python", laboratory.cache, {}).cpu_key(JOB)
    assert (after.subject, after.version != before.version) == (before.subject, True)
