"""Dry runs of whole visits: the command as typed, on the CPU with a fake meter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from xmem.cli.main import app
from xmem.errors import ConfigError
from xmem.validation import (
    LeastMemory,
    MeasuredWorkspaces,
    OperatorTable,
    TrainingPeak,
    load_measurements,
)

pytest.importorskip("torch")
pytest.importorskip("transformers")

MEASURE = Path(__file__).parents[2] / "bench" / "gpu" / "measure.py"


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(MEASURE), "--dry-run", "--minutes", "3", "-o", str(folder), *arguments]


def measure(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        command(folder, *arguments), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of each part."""
    folder = tmp_path_factory.mktemp("results")
    printed = measure(folder, "--each", "1")
    assert "6 runs to do" in printed
    assert "6 runs in" in printed
    return folder


def test_every_part_is_measured_and_loads(visited: Path) -> None:
    measurements = load_measurements(visited)
    assert {m.part: m.outcome for m in measurements} == dict.fromkeys(
        ["device", "training", "least_memory", "operators", "convolutions", "occupancy"], "done"
    )
    assert all(m.environment["gpu"] == "dry run" and m.device_memory is not None for m in measurements)


def test_a_training_run_is_consistent_with_its_history(visited: Path) -> None:
    (run,) = (m for m in load_measurements(visited) if isinstance(m, TrainingPeak))
    history = run.history()
    assert run.history_is_complete
    assert len(run.iterations.seconds) == run.config["iterations"]
    assert run.iterations.max_reserved_bytes.max() == run.peak_reserved_bytes
    # The fake allocator reserves pages and gives none back.
    assert history.size_bytes[history.action == 3].sum() == run.peak_reserved_bytes
    births, deaths = (
        Counter(history.address[history.action == 0]),
        Counter(history.address[history.action == 2]),
    )
    assert deaths <= births


def test_the_least_memory_is_between_what_was_enough_and_what_was_not(visited: Path) -> None:
    (run,) = (m for m in load_measurements(visited) if isinstance(m, LeastMemory))
    finished = dict(zip(run.trial_cap_bytes.tolist(), run.trial_finished.tolist(), strict=True))
    assert finished[run.least_bytes]
    assert not finished[run.too_little_bytes]
    assert run.too_little_bytes < run.least_bytes <= run.peak_reserved_bytes
    assert run.least_bytes - run.too_little_bytes <= max(2 << 20, run.least_bytes // 100)


def test_tables_name_operators_and_convolutions(visited: Path) -> None:
    measurements = load_measurements(visited)
    (operators,) = (m for m in measurements if isinstance(m, OperatorTable))
    backward = [row for row in operators.operators if row.name == "aten::convolution_backward"]
    assert backward
    assert all(row.inputs[0]["dtype"] == "float32" and row.requests[0] > 0 for row in backward)
    (workspaces,) = (m for m in measurements if isinstance(m, MeasuredWorkspaces))
    first = workspaces.convolutions[0]
    assert first.shape["filter"] == [64, 3, 3, 3]
    assert first.forward is not None
    # On the host the result alone: N x 64 x 32 x 32 floats.
    assert first.forward.tolist() == [first.shape["input"][0] * 64 * 32 * 32 * 4]


@pytest.mark.nightly
def test_a_second_visit_repeats_nothing(visited: Path) -> None:
    before = {path: path.read_bytes() for path in visited.rglob("*.jsonl")}
    assert "0 runs to do, 6 done in earlier visits" in measure(visited, "--each", "1")
    assert {path: path.read_bytes() for path in visited.rglob("*.jsonl")} == before


@pytest.mark.nightly
def test_a_killed_visit_is_continued(tmp_path: Path) -> None:
    arguments = ("--only", "convolutions", "--each", "6")
    with subprocess.Popen(command(tmp_path, *arguments), stdout=subprocess.PIPE, text=True) as visit:
        assert visit.stdout is not None
        for line in visit.stdout:
            if "batch=400" in line:
                visit.kill()
    (path,) = tmp_path.rglob("*.jsonl")
    kept = path.read_bytes()
    # As if the machine had gone down in the middle of a line.
    path.write_bytes(kept + b'{"key":"')
    measure(tmp_path, *arguments)
    assert path.read_bytes().startswith(kept)
    configs = [json.loads(line)["config"] for line in path.read_text().splitlines()]
    assert [(config["model"], config["batch"]) for config in configs] == [
        (model, batch) for model in ("VGG16", "MobileNetV2", "ResNet101") for batch in (200, 400)
    ]


@pytest.mark.nightly
def test_a_signal_ends_a_visit_and_all_its_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "XMEM_TEST_VISIT": str(tmp_path)}
    arguments = command(tmp_path, "--only", "convolutions")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as visit:
        assert visit.stdout is not None
        for line in visit.stdout:
            if line.startswith("["):
                visit.send_signal(signal.SIGTERM)
                break
        printed = visit.stdout.read()
    assert visit.returncode == 128 + signal.SIGTERM
    assert "runs in" in printed
    deadline = time.monotonic() + 5
    while (left := processes_with(str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def processes_with(marker: str) -> list[str]:
    """Processes whose environment names this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"XMEM_TEST_VISIT={marker}" in path.read_text(errors="replace"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def test_listed_on_the_command_line(visited: Path) -> None:
    result = CliRunner().invoke(app, ["validate", "--list", str(visited)])
    assert result.exit_code == 0, result.output
    assert "VGG16 AdamW 400" in result.stdout
    listed = json.loads(CliRunner().invoke(app, ["validate", "--list", "--json", str(visited)]).stdout)
    assert listed["schema_version"] == 1
    assert [m["part"] for m in listed["measurements"]].count("training") == 1


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a folder with results"):
        load_measurements(tmp_path / "none")
    assert CliRunner().invoke(app, ["validate", "--list", str(tmp_path / "none")]).exit_code == 2
    assert CliRunner().invoke(app, ["validate"]).exit_code == 2
