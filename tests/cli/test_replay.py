"""``xmem-fast replay`` as typed: output, streams and exit statuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from command_line import xmem_fast
from snapshot_samples import MIB, entry, snapshot, write


def test_agreement(tmp_path: Path) -> None:
    result = xmem_fast("replay", write(tmp_path / "s.pickle", snapshot()))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "Agree: all 5 recorded events, to the byte\n"
        "Rules     of torch 2.8: among free blocks of one size, lowest address first; the first that agree\n"
        "Settings  none\n"
        "\n"
        "Device 0\n"
        "  events         5, all agree\n"
        "  peak reserved  20.00 MiB, from an empty start\n"
    )


def test_a_difference_is_shown_with_what_is_around_it(tmp_path: Path) -> None:
    result = xmem_fast("replay", write(tmp_path / "s.pickle", snapshot(22 * MIB)), "--torch", "2.13")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "oldest segment first\n" in result.stdout
    assert "  differ from event 0\n" in result.stdout
    assert "    recorded     segment_alloc  23,068,672 bytes at 0x40000000, stream 0\n" in result.stdout
    assert "  >         0  segment_alloc" in result.stdout


def test_a_snapshot_without_a_recording_has_nothing_to_compare(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"] = [[entry("snapshot", 0, 0)]]
    result = xmem_fast("replay", write(tmp_path / "s.pickle", content))
    assert (result.exit_code, result.stdout) == (3, "")
    assert "nothing to compare; call torch.cuda.memory._record_memory_history()" in result.stderr.replace(
        "\n", " "
    )


def test_json(tmp_path: Path) -> None:
    path = write(tmp_path / "s.pickle", snapshot(22 * MIB))
    result = xmem_fast("replay", path, "--torch", "2.6", "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    data = json.loads(result.stdout)
    assert next(iter(data)) == "schema_version"
    assert (data["path"], data["agrees"], data["alloc_conf"]) == (str(path), False, "")
    assert data["rules"] == {"torch_version": "2.6", "given": True, "tie_break": "address"}
    (device,) = data["devices"]
    assert (device["device"], device["events"], device["agreed_events"]) == (0, 5, 0)
    difference = device["difference"]
    assert (difference["event"], difference["recorded"]["action"]) == (0, "segment_alloc")
    assert difference["recorded"]["size_bytes"] == 22 * MIB
    assert [event["event"] for event in difference["around"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "wrong", [("--alloc-conf", "no_such_key:1"), ("--torch", "1.4"), ("--no-such-option", "")]
)
def test_usage(wrong: tuple[str, str], tmp_path: Path) -> None:
    result = xmem_fast("replay", write(tmp_path / "s.pickle", snapshot()), *wrong)
    assert (result.exit_code, result.stdout) == (2, "")
    assert wrong[0 if wrong[1] == "" else 1].partition(":")[0] in result.stderr


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("should-not-exist",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (Hostile(), "refused"),
        ([], "_dump_snapshot wrote"),
        ({"segments": [], "device_traces": [[]]}, "_record_memory_history"),
    ],
)
def test_bad_input(content: object, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = xmem_fast("replay", write(tmp_path / "bad.pickle", content))
    assert (result.exit_code, result.stdout) == (3, "")
    assert "bad.pickle" in result.stderr
    assert says in result.stderr
    assert not (tmp_path / "should-not-exist").exists()


def test_a_missing_file(tmp_path: Path) -> None:
    result = xmem_fast("replay", tmp_path / "missing.pickle")
    assert result.exit_code == 3
    assert "No such file or directory; check the path" in result.stderr
