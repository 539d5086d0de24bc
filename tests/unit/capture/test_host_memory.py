"""The host's memory while a command runs, and what is said when it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xmem.capture import capture
from xmem.capture.host_memory import HostMemory, HostMemoryWatch
from xmem.errors import CaptureError

GIB = 1 << 30
# A grandchild holds it, until standard input ends.
HOLDING = """
import subprocess, sys
code = "kept = bytearray(b'x') * (300 << 20); print(len(kept), flush=True); input()"
sys.exit(subprocess.call([sys.executable, "-c", code]))
"""


def test_all_processes_of_a_session_are_counted() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    watch = HostMemoryWatch(process.pid)
    assert process.stdout is not None
    assert process.stdout.readline()
    while watch._peak_bytes < 300 << 20:
        assert process.poll() is None
    process.communicate(b"\n")
    seen = watch.stop()
    assert seen is not None
    assert 300 << 20 <= seen.peak_bytes < 2 * GIB
    assert 0 <= seen.least_available_bytes <= seen.limit_bytes


@pytest.mark.parametrize(
    ("left", "killed", "exit_status", "output", "named"),
    [
        (0.1, 0, -9, "", True),
        (0.1, 0, 137, "", True),
        (0.1, 0, 1, "Root Cause: exitcode  : -9 (pid: 7), Signal 9 (SIGKILL) received by PID 7", True),
        (8.0, 1, -9, "", True),  # the control group's, or too fast to be seen
        (8.0, 0, 1, "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried 9 bytes", True),
        (8.0, 0, 1, "Traceback (most recent call last):\nMemoryError\n", True),
        (8.0, 0, -9, "", False),  # somebody ended it
        (0.1, 0, 1, "ValueError: bad argument", False),
        (8.0, 0, 1, "torch.OutOfMemoryError: CUDA out of memory", False),
        (0.1, 1, 0, "", False),
        (0.1, 1, -11, "", False),
    ],
)
def test_a_death_for_lack_of_memory_is_told_from_others(
    left: float, killed: int, exit_status: int, output: str, named: bool
) -> None:
    seen = HostMemory(int(19.7 * GIB), int(left * GIB), 24 * GIB, killed)
    said = seen.lack(exit_status, output)
    assert (said is not None) == named
    if said is not None:
        assert "ran out of host memory" in said
        assert "19.70 GiB" in said


def test_a_command_that_died_of_it_is_said_to_have(tmp_path) -> None:
    command = ["sh", "-c", 'echo "RuntimeError: DefaultCPUAllocator: can\'t allocate memory" >&2; exit 1']
    with pytest.raises(CaptureError, match="ran out of host memory"):
        capture(command, tmp_path / "trace.json")
