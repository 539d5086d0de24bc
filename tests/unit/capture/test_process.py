"""How a command that takes too long ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from xmem.capture.process import Ended, run_process

# It says where it is, as a captured script does, and ends once it is asked to.
SCRIPT = """
import json, os, pathlib, sys, time
phase = {"phase": sys.argv[1], "since": time.time(), "process": os.getpid()}
partial = pathlib.Path("progress.partial")
partial.write_text(json.dumps(phase))
partial.rename(f"progress.{os.getpid()}")
while not os.path.exists("finish"):
    time.sleep(0.05)
"""


def ended(phase: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    monkeypatch.chdir(folder)
    return run_process([sys.executable, "-c", SCRIPT, phase], os.environ, folder, timeout_s=5.0)


def test_a_script_that_has_used_the_gpu_is_asked_to_finish(tmp_path, monkeypatch):
    assert ended("setting up", tmp_path, monkeypatch).exit_status == 0
    assert (tmp_path / "finish").exists()


def test_a_script_that_has_not_begun_is_ended_at_once(tmp_path, monkeypatch):
    found = ended("starting", tmp_path, monkeypatch)
    assert (found.timed_out, found.last_seen.partition(",")[0]) == (True, "starting")
    assert not (tmp_path / "finish").exists()
