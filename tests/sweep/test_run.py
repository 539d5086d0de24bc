"""Sweeps from spec to results, whatever happens on the way."""

from __future__ import annotations

import csv
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import xmem
from sweep_results import rows_of
from training_sample import MIB, training
from whatif.sample import linear
from xmem.errors import CaptureError, ConfigError, SweepError, TraceError
from xmem.estimation.need import memory_needed
from xmem.estimation.observation import observe
from xmem.scaling import read_model, write_model
from xmem.sweep import Configuration, SweepSummary, read_spec, run_sweep
from xmem.sweep.captures import CommandJob
from xmem.sweep.configuration import cut
from xmem.sweep.evaluate import Finished, evaluate
from xmem.sweep.executors import Executor
from xmem.sweep.executors.local import LocalExecutor
from xmem.sweep.sweep_job import JobFile
from xmem.whatif import ChangedRun
from xmem.whatif.parse import WHAT_IFS

GRID = """
[grid]
batch = [1, 8, 40]
alloc_conf = ["", "expandable_segments:True"]
gpu = ["t4", "h100", "300MiB"]
"""


def no_capture(command: Sequence[str], trace: Path, job: CommandJob) -> None:
    raise AssertionError((command, trace, job))


def swept(spec: Path, output: Path, executor: Executor | None = None, **options: Any) -> SweepSummary:
    options.setdefault("capture", no_capture)
    return run_sweep(read_spec(spec), output, executor=executor or LocalExecutor(2), **options)


@dataclass
class OneByOne:
    """Evaluates one configuration at a time, backwards, and is stopped after some."""

    stop_after: int | None = None
    stop: BaseException = field(default_factory=KeyboardInterrupt)
    evaluated: list[int] = field(default_factory=list)

    def run(self, job: JobFile, configurations: Sequence[Configuration]) -> Generator[Finished]:
        for chunk in reversed(cut(configurations, workers=1, largest=1)):
            if len(self.evaluated) == self.stop_after:
                raise self.stop
            self.evaluated.append(chunk[0].number)
            yield evaluate(job, chunk)


def test_every_row_is_what_an_estimate_says(write_spec, model: Path, tmp_path: Path) -> None:
    spec = write_spec(GRID)
    summary = swept(spec, tmp_path / "out.jsonl")
    rows = rows_of(tmp_path / "out.jsonl")
    assert len(rows) == summary.configurations == 18
    fitted = read_model(model)
    for configuration, row in zip(read_spec(spec).configurations, rows, strict=True):
        assert configuration.device is not None
        slug = configuration.device.slug
        estimate = xmem.estimate(
            fitted.at(batch=row["batch"]),
            gpu=slug or None,
            capacity=None if slug else configuration.device.total_memory_bytes,
            alloc_conf=row["alloc_conf"],
        )
        assert estimate.verdict is not None
        assert estimate.scaling is not None
        assert row["error"] is None
        assert row["capacity_bytes"] == estimate.verdict.capacity_bytes
        assert row["peak_reserved_bytes"] == estimate.peak_reserved_bytes
        assert row["peak_allocated_bytes"] == estimate.peak_allocated_bytes
        assert row["device_peak_bytes"] == estimate.device_peak_bytes
        assert (row["fits"], row["margin_bytes"]) == (estimate.fits, estimate.verdict.margin_bytes)
        assert row["retries"] == (estimate.simulation.num_alloc_retries if estimate.fits else 0)
        assert row["peak_reserved_least_bytes"] == estimate.scaling.peak_reserved_least_bytes
        assert row["peak_reserved_most_bytes"] == estimate.scaling.peak_reserved_most_bytes
    assert {row["fits"] for row in rows} == {True, False}
    assert summary.fitting + summary.misfits == 18


def test_results_do_not_depend_on_the_order_of_execution(write_spec, tmp_path: Path) -> None:
    swept(write_spec(GRID), tmp_path / "a.jsonl")
    swept(write_spec(GRID), tmp_path / "b.jsonl", OneByOne())
    assert rows_of(tmp_path / "a.jsonl") == rows_of(tmp_path / "b.jsonl")


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SweepError("a worker died"), SystemExit(143)])
def test_a_stopped_sweep_goes_on_without_repeating_or_losing_rows(
    write_spec, tmp_path: Path, stop: BaseException
) -> None:
    output = tmp_path / "out.jsonl"
    with pytest.raises(type(stop)):
        swept(write_spec(GRID), output, OneByOne(stop_after=7, stop=stop))
    assert not output.exists()
    rest = OneByOne()
    assert swept(write_spec(GRID), output, rest).reused == 7
    assert len(rest.evaluated) == 11
    swept(write_spec(GRID), tmp_path / "whole.jsonl")
    assert rows_of(output) == rows_of(tmp_path / "whole.jsonl")
    again = OneByOne()
    assert swept(write_spec(GRID), output, again).reused == 18
    assert again.evaluated == []


def test_state_of_another_sweep_is_refused_until_told_to_begin_afresh(write_spec, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    swept(write_spec(GRID), output)
    changed = write_spec(GRID.replace("40", "41"))
    with pytest.raises(ConfigError, match=r"out\.jsonl\.sqlite .* --fresh"):
        swept(changed, output)
    assert swept(changed, output, fresh=True).reused == 0
    assert {row["batch"] for row in rows_of(output)} == {1, 8, 41}


def test_state_of_a_changed_model_is_refused(write_spec, model: Path, tmp_path: Path) -> None:
    spec, output = write_spec("[grid]\nbatch = 2"), tmp_path / "out.jsonl"
    swept(spec, output)
    write_model(
        model,
        [({"batch": b}, training(5 * MIB * b).write(tmp_path / f"other{b}.json")) for b in (2, 3)],
    )
    with pytest.raises(ConfigError, match="--fresh"):
        swept(spec, output)


def test_a_damaged_state_is_no_traceback(write_spec, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    state = swept(write_spec(GRID), output).state
    state.write_bytes(b"no database" * 1000)
    with pytest.raises(SweepError, match=r"damaged .* --fresh"):
        swept(write_spec(GRID), output)
    assert swept(write_spec(GRID), output, fresh=True).reused == 0


def test_errors_are_rows(write_spec, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    summary = swept(
        write_spec(
            "[grid]\nbatch = [2, 2000000000]\ntorch = ['2.6', '2.13', '1.4']\n"
            "alloc_conf = ['', 'large_segment_size_mb:64', 'speed:11']"
        ),
        output,
    )
    rows = rows_of(output)
    wrong = {
        (row["torch"], row["alloc_conf"]) for row in rows if row["error"] is not None and row["batch"] == 2
    }
    assert wrong == {
        ("1.4", ""),
        ("1.4", "large_segment_size_mb:64"),
        ("1.4", "speed:11"),
        ("2.6", "large_segment_size_mb:64"),
        ("2.6", "speed:11"),
        ("2.13", "speed:11"),
    }
    assert summary.errors == sum(row["error"] is not None for row in rows)
    assert all(row["peak_reserved_bytes"] is None for row in rows if row["error"])
    assert "speed" in rows[2]["error"]
    assert all("bytes; use a size" in row["error"] for row in rows[9:15])


def test_a_fault_of_our_own_takes_only_its_row(write_spec, tmp_path: Path, monkeypatch) -> None:
    @dataclass(frozen=True)
    class Broken:
        text: str

        def __call__(self, _run: ChangedRun) -> ChangedRun:
            raise ZeroDivisionError("of nothing")

    monkeypatch.setitem(WHAT_IFS, "broken", lambda text, _value: Broken(text))
    output = tmp_path / "out.jsonl"
    assert swept(write_spec("[grid]\nbatch = 2\nwhat_if = ['', 'broken=1']"), output).errors == 1
    assert rows_of(output)[1]["error"] == "a bug in xMem: ZeroDivisionError: of nothing"


def test_what_ifs_change_the_job_in_their_order(write_spec, tmp_path: Path) -> None:
    changes = ["optimizer=adamw:fused", "accumulate=2"]
    trace = linear().write(tmp_path / "trace.json")
    output = tmp_path / "out.jsonl"
    swept(write_spec(f"[grid]\nwhat_if = ['', '{'; '.join(changes)}']", "trace = 'trace.json'"), output)
    plain, changed = rows_of(output)
    expected = memory_needed(observe(trace).what_if(*changes))
    assert changed["peak_allocated_bytes"] == expected.peak_allocated_bytes > plain["peak_allocated_bytes"]


def test_a_trace_is_a_job_without_dimensions(write_spec, tmp_path: Path) -> None:
    trace = training().write(tmp_path / "trace.json")
    output = tmp_path / "out.jsonl"
    swept(write_spec("[grid]\ngpu = ['t4', '260MiB']", "trace = 'trace.json'"), output)
    rows = rows_of(output)
    assert [row["fits"] for row in rows] == [xmem.estimate(trace, gpu="t4").fits, False]
    assert rows[0]["peak_reserved_least_bytes"] is None
    with pytest.raises(ConfigError, match="single trace"):
        swept(write_spec("[grid]\nbatch = 2", "trace = 'trace.json'"), output)


def test_configurations_must_name_the_models_dimensions(write_spec, tmp_path: Path) -> None:
    for tables in ("[grid]\nseq = 2", "[grid]\nbatch = 2\nseq = 2", "[grid]\ngpu = 't4'"):
        with pytest.raises(ConfigError, match="but the job has batch; set exactly the job's dimensions"):
            swept(write_spec(tables), tmp_path / "out.jsonl")


def test_no_job(write_spec, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.xmem"):
        swept(write_spec("[grid]\nbatch = 2", "model = 'absent.xmem'"), tmp_path / "out.jsonl")


@pytest.mark.parametrize(
    ("name", "says"), [("out.xlsx", r"\.parquet, \.csv, \.jsonl"), ("no/out.csv", "folder")]
)
def test_results_that_cannot_be_written_are_refused_before_the_work(
    write_spec, tmp_path: Path, name: str, says: str
) -> None:
    executor = OneByOne()
    with pytest.raises(ConfigError, match=says):
        swept(write_spec(GRID), tmp_path / name, executor)
    assert executor.evaluated == []


def test_csv_and_parquet_say_the_same_as_json_lines(write_spec, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    tables = GRID.replace("expandable_segments:True", "speed:11")
    for suffix in ("jsonl", "csv", "parquet"):
        swept(write_spec(tables), tmp_path / f"out.{suffix}")
    expected = rows_of(tmp_path / "out.jsonl")
    read = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [{name: row[name] for name in expected[0]} for row in read] == expected
    with (tmp_path / "out.csv").open(newline="") as file:
        texts = list(csv.DictReader(file))
    assert [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in expected
    ] == [{name: row[name] for name in expected[0]} for row in texts]


def test_the_file_of_results_is_replaced_as_a_whole(write_spec, tmp_path: Path, monkeypatch) -> None:
    output = tmp_path / "out.csv"
    output.write_text("old")

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    spec = write_spec(GRID)
    with monkeypatch.context() as patched:
        patched.setattr("xmem.sweep.results.csv.DictWriter", full)
        with pytest.raises(SweepError, match="no row is lost"):
            swept(spec, output)
    assert output.read_text() == "old"
    assert [path.name for path in tmp_path.glob(".out.csv*")] == []
    assert swept(spec, output).reused == 18
    assert output.read_text() != "old"


COMMAND = """
command = ["python", "{script}", "--batch", "{{batch}}"]
fit = {{ batch = [2, 3] }}
"""


@dataclass
class RecordedCaptures:
    """Writes the sample's trace as if the command had run, and fails when told to."""

    fail_at: int | None = None
    commands: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, command: Sequence[str], trace: Path, _job: CommandJob) -> None:
        if len(self.commands) == self.fail_at:
            raise CaptureError("the script failed")
        self.commands.append(tuple(command))
        training(3 * MIB * int(command[-1])).write(trace)


def test_a_command_is_captured_once_for_all_sweeps_of_a_folder(write_spec, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("first")
    job = COMMAND.format(script=script)
    capture = RecordedCaptures(fail_at=1)
    with pytest.raises(CaptureError):
        swept(write_spec(GRID, job), tmp_path / "a.jsonl", capture=capture)
    capture.fail_at = None
    summary = swept(write_spec(GRID, job), tmp_path / "a.jsonl", capture=capture)
    assert capture.commands == [("python", str(script), "--batch", size) for size in "23"]
    assert (summary.captures_made, summary.captures_reused) == (1, 1)

    others = "[grid]\nbatch = [5]\ngpu = ['t4', 'a100-80gb']"
    other = swept(write_spec(others, job), tmp_path / "b.jsonl", capture=capture)
    assert (other.captures_made, other.captures_reused) == (0, 2)
    assert len(capture.commands) == 2

    script.write_text("second")
    swept(write_spec("[grid]\nbatch = [6]", job), tmp_path / "c.jsonl", capture=capture)
    assert len(capture.commands) == 4
    swept(write_spec("[grid]\nbatch = [6]", job), tmp_path / "c.jsonl", capture=capture, fresh=True)
    assert len(capture.commands) == 6


def test_a_command_without_dimensions_is_one_trace(write_spec, tmp_path: Path) -> None:
    def capture(_command: Sequence[str], trace: Path, _job: CommandJob) -> None:
        training().write(trace)

    output = tmp_path / "out.jsonl"
    summary = swept(write_spec("[grid]\ngpu = 't4'", "command = ['python', 'x.py']"), output, capture=capture)
    assert summary.captures_made == 1
    observed = observe(training().write(tmp_path / "trace.json"))
    assert rows_of(output)[0]["peak_reserved_bytes"] == memory_needed(observed).peak_reserved_bytes
