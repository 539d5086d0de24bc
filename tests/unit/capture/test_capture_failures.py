"""Which of several failures is shown, from the notes of the processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from xmem.capture.failures import explain_reads, first_failure


def note(folder: Path, process: int, time_ns: int, **other: Any) -> None:
    row = {
        "process": process,
        "rank": None,
        "time_ns": time_ns,
        "ends_process": True,
        "type": "ValueError",
        "summary": f"ValueError: of {process}",
        "traceback": f"Traceback of {process}",
        "reads": [],
        "others": [],
    }
    (folder / f"failure.{process}.json").write_text(json.dumps(row | other))


def test_nothing_noted(tmp_path: Path) -> None:
    assert first_failure(tmp_path) is None


def test_first_rank_comes_before_those_that_lost_it_and_before_the_launcher(tmp_path: Path) -> None:
    note(tmp_path, 9, 5)  # a helper that the script did without
    note(tmp_path, 10, 40, type="ChildFailedError", others=[{"rank": 1, "process": 12, "exit_status": 1}])
    note(tmp_path, 11, 30, rank=0)
    note(tmp_path, 12, 20, rank=1)
    failure = first_failure(tmp_path)
    assert failure is not None
    assert failure.in_words() == "rank 1: ValueError: of 12"
    assert failure.traceback == "Traceback of 12"


def test_thread_counts_where_no_process_ended(tmp_path: Path) -> None:
    note(tmp_path, 11, 10, ends_process=False)
    assert first_failure(tmp_path).process == 11  # type: ignore[union-attr]
    note(tmp_path, 12, 20)
    assert first_failure(tmp_path).process == 12  # type: ignore[union-attr]


def test_killed_rank_comes_before_those_that_lost_it(tmp_path: Path) -> None:
    killed = {"rank": 1, "process": 12, "exit_status": -9}
    stopped = {"rank": 2, "process": 13, "exit_status": -15}
    note(tmp_path, 10, 40, type="ChildFailedError", others=[stopped, killed])
    note(tmp_path, 11, 30, rank=0)
    failure = first_failure(tmp_path)
    assert failure is not None
    assert failure.by_signal
    assert failure.in_words() == "rank 1: ended by signal 9 (SIGKILL)"


def test_exception_of_another_process_is_better_than_none(tmp_path: Path) -> None:
    note(tmp_path, 10, 40, type="ProcessRaisedException")
    assert first_failure(tmp_path).process == 10  # type: ignore[union-attr]


def test_long_message_is_one_short_line(tmp_path: Path) -> None:
    note(tmp_path, 10, 40, summary="ValueError: " + "x" * 1000 + "\nmore")
    words = first_failure(tmp_path).in_words()  # type: ignore[union-attr]
    assert words.startswith("ValueError: xxx")
    assert words.endswith("x ...")
    assert len(words) < 400


def test_reads_are_explained_with_what_to_set(tmp_path: Path) -> None:
    reads = [
        {"kind": "sizes", "line": "a.py:3", "function": "__getitem__", "value": "0.5"},
        {"kind": "numbers", "line": "a.py:1", "function": "item", "value": "0"},
    ]
    note(tmp_path, 10, 40, reads=reads)
    text = explain_reads(first_failure(tmp_path))  # type: ignore[arg-type]
    assert "selected at a.py:3 (`__getitem__`) was taken as 0.5" in text
    assert "--value a.py:3=SHARE" in text
    assert "a.py:1 (`item`)" in text
    note(tmp_path, 10, 40, reads=reads[1:])
    text = explain_reads(first_failure(tmp_path))  # type: ignore[arg-type]
    assert "a value read at a.py:1 (`item`) was 0" in text
    assert "--value a.py:1=NUMBER" in text


def test_error_of_cuda_is_known_by_its_message(tmp_path: Path) -> None:
    note(tmp_path, 10, 40, summary="RuntimeError: CUDA error: unrecognized error code")
    assert first_failure(tmp_path).of_cuda  # type: ignore[union-attr]
    note(tmp_path, 10, 40, summary="RuntimeError: Expected all tensors to be on cuda:0")
    assert not first_failure(tmp_path).of_cuda  # type: ignore[union-attr]
