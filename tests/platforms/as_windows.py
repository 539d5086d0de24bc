"""``xmem-fast`` as it runs on Windows; the functions of its kernel that are called are made from POSIX's."""

import contextlib
import ctypes
import os
import subprocess
from types import SimpleNamespace

from xmem.files import system

KILL = 9
WAIT_TIMEOUT = 0x102


def kernel(_name: str) -> SimpleNamespace:
    def open_process(_access: int, _inherit: bool, process: int) -> int | None:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return None
        return process

    def terminate(_job: object, _status: int) -> None:
        for process in assigned:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, KILL)

    assigned: list[int] = []
    return SimpleNamespace(
        CreateJobObjectW=lambda _attributes, _name: 1,
        SetInformationJobObject=lambda _job, _kind, _limits, _size: 1,
        AssignProcessToJobObject=lambda _job, handle: assigned.append(handle.value),
        TerminateJobObject=terminate,
        CloseHandle=lambda _handle: 1,
        OpenProcess=open_process,
        WaitForSingleObject=lambda _handle, _ms: WAIT_TIMEOUT,
    )


def be_windows() -> None:
    system.IS_WINDOWS = True
    ctypes.WinDLL = kernel
    subprocess.Popen._handle = property(lambda process: process.pid)
    subprocess.Popen.kill = lambda process: os.kill(process.pid, KILL)


if __name__ == "__main__":
    be_windows()
    from xmem.cli.main import main

    main()
