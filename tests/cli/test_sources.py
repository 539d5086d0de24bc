"""The places that a trace comes from, as typed, and what a terminal shows of a long read."""

from __future__ import annotations

import gzip
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Sequence
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from xmem.testing.trace_builder import TraceBuilder

TIME_LIMIT_S = 60


def training() -> TraceBuilder:
    return (
        TraceBuilder()
        .operator("aten::linear", 0, 20)
        .alloc(0x1000, 1 << 20, 10)
        .annotation("Optimizer.step#SGD.step", 60, 70)
        .free(0x1000, 80)
    )


def command(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "xmem.cli.main", *arguments]


def answer(*arguments: str, given: bytes | None = None) -> dict[str, object]:
    result = subprocess.run(
        command(*arguments, "--json"), input=given, capture_output=True, timeout=TIME_LIMIT_S, check=False
    )
    assert result.returncode == 0, result.stderr
    printed: dict[str, object] = json.loads(result.stdout)
    return printed


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input(pack: type[bytes], tmp_path: Path) -> None:
    path = training().write(tmp_path / "trace.json")
    data = pack(path.read_bytes())
    found, expected = answer("estimate", "-", given=data), answer("estimate", str(path))
    assert found["peak_reserved_bytes"] == expected["peak_reserved_bytes"]
    assert answer("inspect", "-", "blocks", given=data)["rows_total"] == 1
    assert answer("tune", "-", "--gpu", "rtx-3060", given=data)["path"] == "-"
    assert answer("report", "-", "-o", str(tmp_path / "run.pickle"), given=data)["events"]


def test_what_is_wrong_on_standard_input() -> None:
    result = subprocess.run(
        command("estimate", "-"),
        input="Epoch 1",
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith("xmem-fast: standard input, byte 0: not the JSON of a profiler trace")


def test_a_web_address(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    training().write(tmp_path / "trace.json.gz")

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/trace.json.gz"
            assert answer("inspect", url, "blocks")["rows_total"] == 1
        finally:
            server.shutdown()
            serving.join()


def seen_on_a_terminal(master: int, until: str) -> str:
    """What the terminal has shown when it has shown ``until``, or when nobody can write to it any more."""
    seen = ""
    while until not in seen or not until:
        try:
            data = os.read(master, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not data:
            break
        seen += data.decode()
    return seen


def test_a_long_read_shows_how_far_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.json")
    text = training().bytes()
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        command("estimate", str(tmp_path / "trace.json"), "--json"),
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(terminal)
    with (tmp_path / "trace.json").open("wb", buffering=0) as pipe:
        pipe.write(text[:-10])
        # The text ends only when the line has been shown, which takes as long as it takes.
        line = seen_on_a_terminal(master, "kB")
        pipe.write(text[-10:])
    stdout, _ = process.communicate(timeout=TIME_LIMIT_S)
    rest = seen_on_a_terminal(master, "")
    os.close(master)
    assert process.returncode == 0, rest
    assert "reading trace.json" in line
    assert f"{len(text) / 1000:.1f}/? kB" in line
    assert json.loads(stdout)["peak_reserved_bytes"] == 2 << 20
    assert "\x1b[2K" in rest, "the line is not taken away"


def test_a_short_read_shows_nothing(tmp_path: Path) -> None:
    path = training().write(tmp_path / "trace.json")
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        command("estimate", str(path), "--json"), stdout=subprocess.DEVNULL, stderr=terminal
    )
    os.close(terminal)
    assert seen_on_a_terminal(master, "") == ""
    os.close(master)
    assert process.wait(TIME_LIMIT_S) == 0
