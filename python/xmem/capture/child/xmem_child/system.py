"""What operating systems do not have in common, inside the user's process. Standard library only."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable

IS_WINDOWS = sys.platform == "win32"

_LIBRARY = {"darwin": "lib{}.dylib", "win32": "{}.dll"}


def after_fork(function: Callable[[], None]) -> None:
    """Call a function in every fork of this process; Windows has no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def library_file(name: str) -> str:
    """Return the file name of a library of torch, such as ``libc10.so`` of ``c10``."""
    return _LIBRARY.get(sys.platform, "lib{}.so").format(name)


def with_slashes(path: str) -> str:
    """Return the path of a file of code with ``/`` between folders, as traces and reports name it."""
    return path.replace("\\", "/") if IS_WINDOWS else path


def home_folder() -> str:
    """Return the user's home folder as the environment names it; empty if it does not."""
    return os.environ.get("HOME") or (os.environ.get("USERPROFILE", "") if IS_WINDOWS else "")


def unix_clock() -> Callable[[], int]:
    """Return a function that tells the time in nanoseconds since 1970, as finely as torch's profiler does.

    Before Python 3.13, ``time.time_ns`` on Windows steps by 16 ms.
    """
    if not IS_WINDOWS or sys.version_info >= (3, 13):
        return time.time_ns
    ticks = ctypes.c_uint64()  # of 100 ns, since 1601
    ctypes.WinDLL("kernel32").GetSystemTimePreciseAsFileTime(ctypes.byref(ticks))  # type: ignore[attr-defined]
    offset = (ticks.value - 116444736000000000) * 100 - time.perf_counter_ns()
    return lambda: time.perf_counter_ns() + offset
