"""Results of one visit held against those of another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compare import compared

KIT = Path(__file__).parents[2] / "bench" / "gpu"
EMPTY = {"rows": 0, "columns": [], "data": ""}


def record(program: str, allocated: int, reserved: int) -> dict[str, Any]:
    history = {"complete": True, "actions": [], "events": EMPTY, "subjects": EMPTY}
    return {
        "schema": 1,
        "key": program,
        "part": "programs",
        "config": {"program": program},
        "environment": {"gpu": "H100"},
        "driver": "",
        "started": "",
        "seconds": 1.0,
        "outcome": "done",
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "allocated_bytes": 0,
        "reserved_bytes": reserved,
        "history": history,
    }


def written(folder: Path, *records: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "programs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records))
    return folder


def test_equal_peaks_are_counted_and_the_others_are_listed_by_size(tmp_path: Path) -> None:
    measured = written(tmp_path / "card", record("a", 1000, 2000), record("b", 100, 200), record("c", 1, 2))
    other = written(tmp_path / "phantom", record("a", 1000, 1998), record("b", 90, 200), record("d", 1, 2))
    lines = [line.split() for line in compared(measured, other).splitlines()]
    assert ["programs", "peak_allocated_bytes", "2", "1"] in lines
    assert ["programs", "peak_reserved_bytes", "2", "1"] in lines
    assert lines[-2:] == [
        ["programs", "b", "-10.000%", "+0.000%"],
        ["programs", "a", "+0.000%", "-0.100%"],
    ]


def test_what_failed_on_one_side_is_listed_first(tmp_path: Path) -> None:
    failed = {**record("b", 0, 0), "outcome": "failed", "error": "RuntimeError: no"}
    measured = written(tmp_path / "card", record("a", 1000, 2000), record("b", 100, 200))
    other = written(tmp_path / "phantom", record("a", 900, 2000), failed)
    rows = compared(measured, other).splitlines()[-2:]
    assert [row.split()[:3] for row in rows] == [["programs", "b", "failed"], ["programs", "a", "-10.000%"]]


def test_folders_that_share_no_run(tmp_path: Path) -> None:
    measured, other = (
        written(tmp_path / "card", record("a", 1, 2)),
        written(tmp_path / "x", record("b", 1, 2)),
    )
    assert compared(measured, other).startswith("no run of the same part")


@pytest.mark.parametrize(
    "results", sorted((KIT / "results").glob("nvidia-*")), ids=lambda folder: folder.name
)
def test_committed_results_are_equal_to_themselves(results: Path) -> None:
    counted = [line.split() for line in compared(results, results).splitlines()[1:] if line.strip()]
    assert counted
    assert all(row[-1] == row[-2] for row in counted)
