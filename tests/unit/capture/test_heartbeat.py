"""Where a silent script is, from what its processes noted and what faulthandler wrote of its threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import xmem.capture
from xmem.capture.heartbeat import STACKS_SIGNAL, Heartbeat, place_of

STACKS = """Stack (most recent call first):
  File "/opt/xmem/capture/child/xmem_child/on_phantom/observe.py", line 59 in __torch_function__
  File "/env/lib/python3.11/site-packages/triton/compiler/compiler.py", line 220 in compile
  File "/home/me/train.py", line 41 in step
  File "/home/me/train.py", line 80 in <module>
"""

ASKED = """
import pathlib, sys, threading
sys.path.insert(0, sys.argv[1])
from xmem_child.records.progress import Progress
def deep(n):
    return 0 if n == 0 else 1 + deep(n - 1)
def busy():
    while True:
        thread = threading.Thread(target=deep, args=(50,))
        thread.start()
        thread.join()
        sum(deep(i % 200) for i in range(300))
Progress(pathlib.Path(sys.argv[2])).note("starting")
for _ in range(3):
    threading.Thread(target=busy, daemon=True).start()
print("ready", flush=True)
while True:
    deep(100)
"""


def test_the_main_threads_own_line_and_the_innermost_one() -> None:
    assert place_of(STACKS) == "at /home/me/train.py:41, in compile (triton/compiler/compiler.py:220)"
    assert place_of("") == ""


def test_without_a_line_of_the_user_the_innermost_one_is_named() -> None:
    only = 'Stack (most recent call first):\n  File "/usr/lib/python3.11/socket.py", line 7 in accept\n'
    assert place_of(only) == "in accept (/usr/lib/python3.11/socket.py:7)"


def note(folder: Path, process: int, phase: str, seconds_ago: float) -> None:
    content = {"phase": phase, "since": time.time() - seconds_ago, "process": process}
    (folder / f"progress.{process}").write_text(json.dumps(content))


def test_who_trains_is_shown_rather_than_a_launcher(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path, lambda _line: None)
    assert heartbeat.last_seen() == ""
    note(tmp_path, os.getppid(), "starting", 60)
    note(tmp_path, os.getpid(), "iteration 2, in GPT", 5)
    assert heartbeat.last_seen() == f"process {os.getpid()}: iteration 2, in GPT, for 5 s"
    note(tmp_path, 2**22 + 1, "iteration 9, in GPT", 500)  # no such process
    assert "iteration 2" in heartbeat.last_seen()


def test_a_damaged_note_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "progress.1").write_text('{"phase": "iter')
    assert Heartbeat(tmp_path, lambda _line: None).last_seen() == ""


def test_a_process_that_takes_its_answer_along_is_shown_without_a_place(tmp_path: Path) -> None:
    ending = (
        "import os, pathlib, signal, sys, time\n"
        "file = pathlib.Path(sys.argv[1], f'stacks.{os.getpid()}')\n"
        "signal.signal(int(sys.argv[2]), lambda *_: file.unlink())\n"
        "file.touch()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    assert STACKS_SIGNAL is not None
    command = [sys.executable, "-c", ending, str(tmp_path), str(int(STACKS_SIGNAL))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            note(tmp_path, process.pid, "iteration 2", 5)
            assert Heartbeat(tmp_path, lambda _line: None).last_seen() == "iteration 2, for 5 s"
        finally:
            process.kill()


def test_asking_where_a_script_is_does_no_harm_to_its_threads(tmp_path: Path) -> None:
    child = Path(xmem.capture.__file__).parent / "child"
    command = [sys.executable, "-c", ASKED, str(child), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert STACKS_SIGNAL is not None
            for _ in range(3000):
                os.kill(process.pid, STACKS_SIGNAL)
                time.sleep(0.001)
            assert process.poll() is None
            heartbeat = Heartbeat(tmp_path, lambda _line: None)  # on a loaded machine an answer may be late
            assert any(", at <string>:" in heartbeat.last_seen() for _ in range(100))
        finally:
            process.kill()


def test_a_script_that_ends_no_iteration_any_more_is_noticed(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path, lambda _line: None)

    def note(phase: str) -> float:
        text = json.dumps({"phase": phase, "since": time.time(), "process": os.getpid()})
        (tmp_path / "progress.1").write_text(text)
        return heartbeat.without_progress_s()

    assert note("starting") == 0
    assert note("iteration 1, in Linear") == 0  # the first may take as long as it likes
    time.sleep(0.2)
    assert note("after 1 iterations") < 0.1
    time.sleep(0.2)
    assert note("iteration 2, in Linear") >= 0.2
    assert note("after 2 iterations") < 0.1


def test_a_program_that_has_taken_the_process_over_is_not_sent_a_signal(tmp_path: Path) -> None:
    """It has none of the handlers of the program before it, and would be ended."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        note(tmp_path, process.pid, "iteration 2", 5)
        (tmp_path / f"stacks.{process.pid}").touch()
        assert Heartbeat(tmp_path, lambda _line: None).last_seen() == "iteration 2, for 5 s"
        time.sleep(0.2)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
