"""``xmem-fast sweep`` as typed: streams, exit statuses, and what is left after it was killed."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from command_line import heed_interrupts, xmem_fast
from nightly import most_nightly
from sweep_results import rows_of
from xmem.sweep import read_spec
from xmem.sweep.store import Store

KILLS = int(os.environ.get("XMEM_SWEEP_KILLS", "4"))

GRID = """
[grid]
batch = [{batches}]
alloc_conf = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"]
gpu = ["t4", "h100", "300MiB", "a10", "v100-32gb"]
"""

COMMAND = [sys.executable, "-m", "xmem.cli.main", "sweep"]


def grid(batches: int) -> str:
    return GRID.format(batches=", ".join(str(batch) for batch in range(1, batches + 1)))


def test_text_and_json(write_spec: Callable[..., Path], tmp_path: Path) -> None:
    spec, output = write_spec(grid(3)), tmp_path / "out.jsonl"
    text = xmem_fast("sweep", spec, "-o", output)
    assert (text.exit_code, text.stderr) == (0, "")
    fitting = sum(row["fits"] for row in rows_of(output))
    assert text.stdout.startswith(f"{output}: 60 configurations, {fitting} fit, {60 - fitting} do not; ")

    again = xmem_fast("sweep", spec, "-o", output, "--json")
    data = json.loads(again.stdout)
    assert next(iter(data)) == "schema_version"
    expected = {"executor": "local", "results": str(output), "configurations": 60, "reused": 60, "errors": 0}
    assert expected.items() <= data.items()
    assert Path(data["state"]).is_file()


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (("-o", "out.xlsx"), 2, ".parquet, .csv, .jsonl"),
        (("-o", "out.csv", "--address", "auto"), 2, "--executor ray"),
        (("-o", "out.csv", "--slurm", "cluster=local"), 2, "--executor slurm"),
        (("-o", "out.csv", "--executor", "slurm", "--slurm", "partition"), 2, "KEY=VALUE"),
        (("-o", "out.csv", "--executor", "cloud"), 2, "cloud"),
    ],
)
def test_usage(
    options: tuple[str, ...], status: int, says: str, write_spec: Callable[..., Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = xmem_fast("sweep", write_spec(grid(1)), *options)
    assert (result.exit_code, result.stdout) == (status, "")
    assert says in result.stderr


def test_bad_input(write_spec: Callable[..., Path], tmp_path: Path) -> None:
    result = xmem_fast("sweep", write_spec(grid(1), "model = 'absent.xmem'"), "-o", tmp_path / "out.csv")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "absent.xmem" in result.stderr


def test_a_sweep_without_any_answer_is_bad_input(write_spec: Callable[..., Path], tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    result = xmem_fast("sweep", write_spec("[grid]\nbatch = 2\ntorch = '1.4'"), "-o", output)
    assert result.exit_code == 3
    assert "1 have no answer" in result.stdout
    assert "1.4" in rows_of(output)[0]["error"]


def started(spec: Path, output: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, str(spec), "-o", str(output), "--workers", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def kept(output: Path) -> int:
    """Rows that the state holds now; none while there is no state."""
    state = output.parent / ".xmem-sweep" / f"{output.name}.sqlite"
    if not state.exists():
        return 0
    with closing(sqlite3.connect(state)) as database:
        try:
            (count,) = database.execute("select count(*) from outcomes").fetchone()
        except sqlite3.OperationalError:  # no tables yet
            return 0
    return int(count)


@pytest.mark.nightly
def test_killed_at_random_moments_a_sweep_ends_with_the_rows_of_an_undisturbed_one(
    write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    spec = write_spec(grid(60))
    whole, killed = tmp_path / "whole.jsonl", tmp_path / "killed.jsonl"
    began = time.monotonic()
    assert finished(started(spec, whole))[0] == 0
    lasts_s = time.monotonic() - began
    moments = random.Random(7)
    counts = [0]
    for _ in range(KILLS):
        process = started(spec, killed)
        time.sleep(moments.uniform(0, lasts_s))
        process.kill()
        process.communicate()
        counts.append(kept(killed))
    assert counts == sorted(counts)  # no row that was once kept is lost
    status, stdout, stderr = finished(started(spec, killed))
    assert (status, stderr) == (0, "")
    total = len(read_spec(spec).configurations)
    assert stdout.startswith(f"{killed}: {total:,} configurations")
    assert (f"{counts[-1]:,} from an earlier run" in stdout) == (counts[-1] > 0)
    assert rows_of(killed) == rows_of(whole)
    assert list(tmp_path.glob(".killed.jsonl.*")) == []


@pytest.mark.parametrize(("number", "status"), most_nightly([(signal.SIGINT, 130), (signal.SIGTERM, 143)]))
def test_a_signal_leaves_a_state_to_go_on_from(
    write_spec: Callable[..., Path], tmp_path: Path, number: signal.Signals, status: int
) -> None:
    spec, output = write_spec(grid(200)), tmp_path / "out.jsonl"
    process = started(spec, output)
    while kept(output) == 0:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (status, "")
    assert "Traceback" not in stderr
    if number == signal.SIGINT:
        assert "finished rows are kept" in stderr
    assert not output.exists()
    rows = kept(output)
    assert 0 < rows < 4000
    resumed: Any = json.loads(xmem_fast("sweep", spec, "-o", output, "--json").stdout)
    assert resumed["reused"] == rows
    assert resumed["configurations"] == len(rows_of(output)) == 4000


def test_two_sweeps_of_one_file_of_results_do_not_disturb_each_other(
    write_spec: Callable[..., Path], tmp_path: Path
) -> None:
    spec, output = write_spec(grid(40)), tmp_path / "out.jsonl"
    both = [started(spec, output) for _ in range(2)]
    assert [(status, stderr) for status, _, stderr in map(finished, both)] == [(0, "")] * 2
    assert [row["configuration"] for row in rows_of(output)] == list(range(800))


def test_a_store_keeps_all_rows_of_a_batch_or_none(tmp_path: Path) -> None:
    from xmem.sweep import ConfigurationOutcome

    with Store(tmp_path / "rows.sqlite", "one") as store:
        with pytest.raises(AttributeError):
            store.add([(0, ConfigurationOutcome(retries=1)), (1, None)])  # type: ignore[list-item]
        assert store.finished() == set()
        store.add([(1, ConfigurationOutcome(retries=1)), (0, ConfigurationOutcome(fits=True))])
        assert list(store.outcomes()) == [
            (0, ConfigurationOutcome(fits=True)),
            (1, ConfigurationOutcome(retries=1)),
        ]
