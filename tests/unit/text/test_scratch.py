"""Private folders: removed at the end, after a kill by the next run, and never while somebody uses them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from xmem.files.interrupts import uninterrupted
from xmem.files.scratch import OWNER, scratch_folder

HOLD = """
import sys, time
from pathlib import Path
from xmem.files.scratch import scratch_folder
with scratch_folder(".out.", Path(sys.argv[1])) as folder:
    (folder / "data").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_folder_is_private_and_goes_with_its_block(tmp_path: Path) -> None:
    def fill() -> None:
        with scratch_folder(".out.", tmp_path) as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
            (folder / "data").write_text("x")
            raise KeyError

    with pytest.raises(KeyError):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_run_is_removed_by_the_next_one_and_no_other(tmp_path: Path) -> None:
    (tmp_path / ".out.users").mkdir()
    (tmp_path / ".out.link").symlink_to(tmp_path / ".out.users")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        with scratch_folder(".out.", tmp_path):
            assert (held / OWNER).exists()  # it is in use
        holder.kill()
    assert (held / "data").exists()
    with scratch_folder(".other.", tmp_path):
        assert (held / "data").exists()
    with scratch_folder(".out.", tmp_path):
        assert not held.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.link", ".out.users"]


def test_signals_wait_for_the_end_of_a_block() -> None:
    done = False
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  the signal comes when the inner block ends
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            done = True
        time.sleep(5)
    assert done


def test_other_threads_hold_nothing_back() -> None:
    reached: list[bool] = []

    def run() -> None:
        with uninterrupted():
            reached.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert reached == [True]
