"""What a captured command started ends with the capture, however that ends, and its folder goes too."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import heed_interrupts
from left_behind import processes_of, until
from nightly import most_nightly

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

PATIENCE_S = 30.0
TRAIN = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
# A child in the background, a daemon in a session of its own, and one that heeds no request to end.
CHILDREN = """
import signal, subprocess, sys
subprocess.Popen(["sleep", "300"])
subprocess.Popen(["sleep", "300"], start_new_session=True)
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
subprocess.Popen([sys.executable, "-c", stubborn])
"""
STUBBORN = "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
WAIT = "pathlib.Path(sys.argv[1]).touch(); time.sleep(300)\n"


def capture(folder: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(script)
    line = [
        sys.executable,
        "-m",
        "xmem.cli.main",
        "capture",
        "--mode",
        "real",
        "-o",
        str(folder / "trace.json"),
    ]
    return subprocess.Popen(
        [*line, "--", sys.executable, str(folder / "script.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def waiting(folder: Path) -> subprocess.Popen[str]:
    """A capture of a script that waits, ignores requests to end, and has started others."""
    ready = folder / "ready"
    process = capture(folder, STUBBORN + CHILDREN + WAIT, str(ready))
    assert until(ready.exists, PATIENCE_S), process.communicate()
    return process


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_children_end_with_a_command_that_ends_well(tmp_path: Path) -> None:
    process = capture(tmp_path, CHILDREN + TRAIN)
    _, stderr = process.communicate(timeout=PATIENCE_S * 2)
    assert process.returncode == 0, stderr
    assert (processes_of(tmp_path), hidden(tmp_path)) == ([], [])


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("pause_s", [0.05, 0.3])
def test_a_second_signal_cuts_nothing_short(tmp_path: Path, first: signal.Signals, pause_s: float) -> None:
    process = waiting(tmp_path)
    process.send_signal(first)
    time.sleep(pause_s)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (130, 128 + first)
    if process.returncode == 143:
        assert "xmem-fast: ended by SIGTERM" in stderr
    assert (processes_of(tmp_path), hidden(tmp_path)) == ([], [])


@pytest.mark.parametrize("deadly", most_nightly([signal.SIGKILL, signal.SIGQUIT]))
def test_what_a_killed_capture_leaves_ends_by_itself_or_with_the_next(
    tmp_path: Path, deadly: signal.Signals
) -> None:
    process = waiting(tmp_path)
    process.send_signal(deadly)
    process.communicate(timeout=PATIENCE_S)
    assert until(lambda: not [line for line in processes_of(tmp_path) if "script.py" in line], PATIENCE_S)
    assert len(hidden(tmp_path)) == 1
    again = capture(tmp_path, TRAIN)
    _, stderr = again.communicate(timeout=PATIENCE_S * 2)
    assert again.returncode == 0, stderr
    assert (processes_of(tmp_path), hidden(tmp_path)) == ([], [])
