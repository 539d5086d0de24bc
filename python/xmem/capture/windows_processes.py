"""The processes of a captured command on Windows, where there are no sessions: a job object holds them.

The functions are those of ``kernel32.dll``, as "Job Objects" of the Windows API describes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from typing import Any

_EXTENDED_LIMITS = 9  # JobObjectExtendedLimitInformation
_KILL_ON_JOB_CLOSE = 0x2000  # JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
_SYNCHRONIZE = 0x100000
_WAIT_TIMEOUT = 0x102
_ENDED_BY_US = 1


class _BasicLimits(ctypes.Structure):
    """``JOBOBJECT_BASIC_LIMIT_INFORMATION``."""

    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("least_working_set", ctypes.c_size_t),
        ("most_working_set", ctypes.c_size_t),
        ("processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority", ctypes.c_uint32),
        ("scheduling", ctypes.c_uint32),
    )


class _ExtendedLimits(ctypes.Structure):
    """``JOBOBJECT_EXTENDED_LIMIT_INFORMATION``."""

    _fields_ = (
        ("basic", _BasicLimits),
        ("input_output", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


def _kernel() -> Any:
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]  # on Windows alone
    kernel.CreateJobObjectW.restype = kernel.OpenProcess.restype = ctypes.c_void_p
    return kernel


class Job:
    """A command and all that it starts from now on. They end with this process too, however that ends: the
    system closes the job then."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._kernel = _kernel()
        self._job = ctypes.c_void_p(self._kernel.CreateJobObjectW(None, None))
        limits = _ExtendedLimits()
        limits.basic.flags = _KILL_ON_JOB_CLOSE
        self._kernel.SetInformationJobObject(
            self._job, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
        )
        # The launcher of a virtual environment may have started Python by now, and ends it when it ends.
        handle = ctypes.c_void_p(int(process._handle))  # type: ignore[attr-defined]
        self._kernel.AssignProcessToJobObject(self._job, handle)

    def end(self) -> None:
        """End whatever of it still runs."""
        self._kernel.TerminateJobObject(self._job, _ENDED_BY_US)
        with contextlib.suppress(OSError):  # it may not have got into the job
            self._process.kill()
        self._kernel.CloseHandle(self._job)


def is_running(process: int) -> bool:
    """Return whether a process exists. ``os.kill(process, 0)`` would send it a Ctrl-C here."""
    kernel = _kernel()
    handle = kernel.OpenProcess(_SYNCHRONIZE, False, process)
    if not handle:
        return False
    handle = ctypes.c_void_p(handle)
    running = bool(kernel.WaitForSingleObject(handle, 0) == _WAIT_TIMEOUT)
    kernel.CloseHandle(handle)
    return running
