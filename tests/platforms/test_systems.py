"""The few functions that know operating systems apart."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xmem.capture import windows_processes
from xmem.capture.child.xmem_child import masking
from xmem.capture.child.xmem_child import system as of_child
from xmem.capture.processes import CommandProcesses, is_running
from xmem.files import sources, system


@pytest.mark.parametrize(
    ("platform", "file"), [("linux", "libc10.so"), ("darwin", "libc10.dylib"), ("win32", "c10.dll")]
)
def test_libraries_of_torch_have_the_names_of_the_system(
    monkeypatch: pytest.MonkeyPatch, platform: str, file: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert of_child.library_file("c10") == file


def test_the_home_folder_is_hidden_with_either_slash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "IS_WINDOWS", True)
    monkeypatch.setattr(of_child, "IS_WINDOWS", True)
    monkeypatch.delenv("HOME")
    monkeypatch.setenv("USERPROFILE", "C:\\Users\\Ada")
    assert masking.with_short_home("C:\\Users\\Ada\\train.py") == "~\\train.py"
    assert masking.with_short_home("C:/Users/Ada/train.py") == "~/train.py"
    assert masking.with_short_home("C:/Users/Adam/train.py") == "C:/Users/Adam/train.py"


def test_code_is_named_with_slashes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_child.with_slashes("a\\b.py") == "a\\b.py"  # one name, on POSIX
    monkeypatch.setattr(of_child, "IS_WINDOWS", True)
    assert of_child.with_slashes("a\\b.py") == "a/b.py"


def test_a_drive_stands_behind_the_slash_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources._path_of("/C:/my%20trace.json") == Path("/C:/my trace.json")
    monkeypatch.setattr(system, "IS_WINDOWS", True)
    assert sources._path_of("/C:/my%20trace.json") == Path("C:/my trace.json")


def test_the_limits_of_a_job_are_laid_out_as_the_system_reads_them() -> None:
    # Of 64-bit Windows: the sizes that its headers give, and where the flags are.
    assert ctypes.sizeof(windows_processes._BasicLimits) == 64
    assert ctypes.sizeof(windows_processes._ExtendedLimits) == 144
    assert windows_processes._BasicLimits.flags.offset == 16


def test_a_process_runs_until_it_ends(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        assert is_running(process.pid)
        CommandProcesses(process, tmp_path).end()
        assert process.wait(10) == -signal.SIGTERM
    assert not is_running(process.pid)
    assert is_running(os.getpid())
