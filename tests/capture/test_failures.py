"""What is said of a command that fails: the exception that brought it down, whoever printed what."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nightly import most_nightly
from xmem.capture import capture
from xmem.errors import CaptureError

from .conftest import TARGETS, needs_torch

pytestmark = needs_torch

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def fails(command: list[str], folder: Path) -> CaptureError:
    with pytest.raises(CaptureError) as caught:
        capture(command, folder / "trace.json", timeout_s=100)
    assert list(folder.iterdir()) == []
    return caught.value


def test_failing_rank_under_torchrun(tmp_path: Path) -> None:
    error = fails([*TORCHRUN, str(TARGETS / "processes/failing_rank.py"), "raise"], tmp_path)
    assert "rank 1: ValueError: the data of rank 1 is not there" in error.message
    assert error.traceback.startswith("Traceback (most recent call last)")
    assert 'failing_rank.py", line' in error.traceback
    assert "xmem_child" not in error.traceback
    assert "ChildFailedError" not in str(error)


@pytest.mark.nightly
def test_killed_rank_under_torchrun(tmp_path: Path) -> None:
    error = fails([*TORCHRUN, str(TARGETS / "processes/failing_rank.py"), "kill"], tmp_path)
    assert "rank 1: ended by signal 9" in error.message
    assert "of memory left, so there is another cause" in error.message


def test_command_that_a_signal_ends_after_an_exception(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(
        "import os, signal, subprocess, sys, torch\n"
        "if len(sys.argv) > 1: raise ValueError('no kernel for this')\n"
        "subprocess.run([sys.executable, __file__, 'worker'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with pytest.raises(CaptureError, match=r"ended by signal 9 \(SIGKILL\) after ValueError: no kernel"):
        capture([sys.executable, str(script)], tmp_path / "trace.json", timeout_s=100)


@pytest.mark.parametrize("way", most_nightly(["hook", "exit"]))
def test_script_that_shows_its_exception_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("RANK", "1")
    error = fails([sys.executable, str(TARGETS / "processes/failing_rank.py"), way], tmp_path)
    assert "rank 1: ValueError: the data of rank 1 is not there" in error.message


def test_failing_process_of_torch_multiprocessing(tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(
        "import torch\n"
        "def work(rank):\n    raise ValueError(f'the data of process {rank} is not there')\n"
        "if __name__ == '__main__':\n    torch.multiprocessing.spawn(work, nprocs=1)\n"
    )
    output = tmp_path / "output"
    output.mkdir()
    error = fails([sys.executable, str(script)], output)
    assert "ValueError: the data of process 0 is not there" in error.message


def test_failure_before_torch_is_imported(tmp_path: Path) -> None:
    error = fails([sys.executable, "-c", "import no_such_package"], tmp_path)
    assert "ModuleNotFoundError: No module named 'no_such_package'" in error.message


def test_ends_that_are_no_failures_leave_no_note(tmp_path: Path) -> None:
    handled = "import sys, torch\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(0)"
    assert "no optimizer step" in fails([sys.executable, "-c", handled], tmp_path).message
    error = fails([sys.executable, "-c", "import sys, torch; sys.exit(3)"], tmp_path)
    assert error.exit_status == 3
    assert error.traceback == ""


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("os._exit(0)", "a process left at once"),
        ("sys.exit(3)", r"it ended with exit status 3; see its output above"),
        ("os.kill(os.getpid(), signal.SIGABRT)", r"signal 6 \(SIGABRT\); see the output above"),
        ("ctypes.string_at(0)", r"signal 11 \(SIGSEGV\); see the output above"),
    ],
)
def test_an_end_without_an_exception_is_named(tmp_path: Path, ending: str, message: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import ctypes, os, signal, sys, torch\ntorch.nn.Linear(4, 4)\n{ending}\n")
    with pytest.raises(CaptureError, match=message) as caught:
        capture([sys.executable, str(script)], tmp_path / "trace.json", mode="real")
    assert "smaller batch" not in str(caught.value)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\n")
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=0))
    with pytest.raises(CaptureError, match=r"the disk of .* is full; free some space"):
        capture([sys.executable, str(script)], tmp_path / "trace.json", mode="real")
