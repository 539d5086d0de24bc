"""Sweeps over layouts: ways to divide a job, each of which is captured by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sweep_results import rows_of
from training_sample import MIB, training
from xmem.errors import CaptureError, ConfigError
from xmem.sweep import read_spec, run_sweep
from xmem.sweep.captures import CommandJob
from xmem.sweep.executors.local import LocalExecutor

JOB = """command = ['train', '--tp', '{tp}', '--pp={pp}', '--recompute', '{recompute}', '--batch', '{batch}']
world_size = 32
fit = { batch = [2, 3] }
"""
TABLES = """
[layouts]
tp = [1, 2, 4]
pp = [1, 3, 8]
recompute = ["none", "full"]
splits = ["tp", "pp"]

[grid]
batch = [4, 8]
gpu = ["500MiB", "h100"]
"""


class Trainer:
    """A command whose memory follows its layout; eight stages of one rank each fail."""

    def __init__(self) -> None:
        self.ran: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], trace: Path, _job: CommandJob) -> None:
        self.ran.append(command)
        _, _, tp, pp, _, recompute, _, batch = command
        if (tp, pp) == ("1", "--pp=8"):
            raise CaptureError("eight stages need two GPUs")
        kept = 12 if recompute == "none" else 4
        training(kept * MIB * int(batch) // int(tp)).write(trace)


def test_every_layout_that_divides_the_world_is_captured_and_fitted(write_spec, tmp_path) -> None:
    spec, output, trainer = read_spec(write_spec(TABLES, JOB)), tmp_path / "out.jsonl", Trainer()
    summary = run_sweep(spec, output, executor=LocalExecutor(1), capture=trainer)
    rows = rows_of(output)
    layouts = {(row["tp"], row["pp"], row["data"], row["recompute"]) for row in rows}
    assert layouts == {
        (tp, pp, 32 // tp // pp, recompute)
        for tp in (1, 2, 4)
        for pp in (1, 8)
        for recompute in ("none", "full")
    }
    assert len(rows) == 12 * 4
    assert summary.captures_made == 10 * 2
    failed = [row for row in rows if (row["tp"], row["pp"]) == (1, 8)]
    assert {row["error"] for row in failed} == {"eight stages need two GPUs"}
    need = {
        (row["tp"], row["recompute"], row["batch"]): row["peak_allocated_bytes"]
        for row in rows
        if row["pp"] == 1 and row["gpu"] == "h100"
    }
    assert need[1, "none", 8] - need[1, "none", 4] >= 48 * MIB
    assert need[4, "full", 8] < need[4, "none", 8] < need[1, "none", 8]
    assert {row["gpu"] for row in summary.best} == {"500MiB", "h100"}
    for gpu in ("500MiB", "h100"):
        needs = [row["device_peak_bytes"] for row in summary.best if row["gpu"] == gpu]
        assert needs == sorted(needs)
    assert all(row["fits"] for row in summary.best)
    again = run_sweep(spec, output, executor=LocalExecutor(1), capture=trainer)
    assert (again.captures_made, again.captures_reused, again.reused) == (0, 20, 48)
    assert rows_of(output) == rows


def test_a_single_layout_that_fails_ends_the_sweep(write_spec, tmp_path) -> None:
    tables = TABLES.replace("[1, 2, 4]", "1").replace("[1, 3, 8]", "8").replace('["none", "full"]', '"full"')
    spec = read_spec(write_spec(tables, JOB))
    with pytest.raises(CaptureError, match="eight stages"):
        run_sweep(spec, tmp_path / "out.csv", executor=LocalExecutor(1), capture=Trainer())


def test_without_splits_every_combination_is_a_layout_and_data_may_go_into_the_command(write_spec) -> None:
    job = "command = ['train', '{a}']"
    assert [dict(layout) for layout in read_spec(write_spec("[layouts]\na = [1, 2]", job)).layouts] == [
        {"a": 1},
        {"a": 2},
    ]
    job = "command = ['train', '{tp}', '{data}']\nworld_size = 8"
    spec = read_spec(write_spec("[layouts]\ntp = [2, 4]\nsplits = ['tp']", job))
    assert [dict(layout) for layout in spec.layouts] == [{"tp": 2, "data": 4}, {"tp": 4, "data": 2}]


@pytest.mark.parametrize(
    ("layouts", "job", "says"),
    [
        ("tp = [1, 2]", "model = 'm.xmem'", "needs a command"),
        ("tp = [1, 2]", "command = ['train']", "does not use {tp}"),
        ("tp = [1, 1]", "command = ['{tp}']", "tp = [1, 1]"),
        ("tp = [1, 'x']", "command = ['{tp}']", "tp = [1, 'x']"),
        ("tp = []", "command = ['{tp}']", "tp = []"),
        ("tp = 2\nsplits = ['tp']", "command = ['{tp}']", "set world_size"),
        ("tp = 2\nsplits = ['pp']", "command = ['{tp}']\nworld_size = 8", "splits = ['pp']"),
        ("tp = 'x'\nsplits = ['tp']", "command = ['{tp}']\nworld_size = 8", "does not divide"),
        ("tp = 3\nsplits = ['tp']", "command = ['{tp}']\nworld_size = 8", "no layout divides 8 ranks"),
        ("tp = 2\ndata = 4\nsplits = ['tp']", "command = ['{tp}']\nworld_size = 8", "leave data out"),
        ("gpu = 'h100'", "command = ['{gpu}']", "gpu cannot be a key"),
        ("error = 3", "command = ['{error}']", "error cannot be a key"),
    ],
)
def test_layouts_that_make_no_sense_are_refused(
    layouts: str, job: str, says: str, write_spec: Callable[..., Path]
) -> None:
    with pytest.raises(ConfigError) as raised:
        read_spec(write_spec(f"[layouts]\n{layouts}", job))
    assert says in str(raised.value)
