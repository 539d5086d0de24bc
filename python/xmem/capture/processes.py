"""The processes that a captured command started, and their end: none of them outlives the capture.

Those of its session are found by that. A daemon leaves the session, but keeps the environment, in which the
private folder of the capture is named.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xmem.capture import windows_processes
from xmem.files import system

_TERMINATE_S = 2.0
_KILL_S = 5.0
_POLL_S = 0.02
_PROC = Path("/proc")


class CommandProcesses:
    """A command that was started with ``start_options()``, and all that it starts.

    Args:
        process: The command.
        workspace: Private folder of the capture.
    """

    def __init__(self, process: subprocess.Popen[bytes], workspace: Path) -> None:
        self._session, self._workspace = process.pid, workspace
        self._job = windows_processes.Job(process) if system.IS_WINDOWS else None

    def end(self) -> None:
        """End what is left of them."""
        if self._job is not None:
            self._job.end()
        else:
            end_processes(self._session, self._workspace)


def start_options() -> dict[str, Any]:
    """Return how to start a command, for ``Popen``: Ctrl-C reaches us alone, and its processes are known by
    its session."""
    if system.IS_WINDOWS:
        return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    return {"start_new_session": True}


def is_running(process: int) -> bool:
    """Return whether there is a process of this number."""
    if system.IS_WINDOWS:
        return windows_processes.is_running(process)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def end_processes(session: int, workspace: Path) -> None:
    """End what is left of a command: ask first, then kill.

    Args:
        session: Number of the process that led it.
        workspace: Private folder of the capture.
    """
    for sent, patience_s in ((signal.SIGTERM, _TERMINATE_S), (signal.SIGKILL, _KILL_S)):
        until = time.monotonic() + patience_s
        asked: set[int] = set()
        while True:
            left = set(_left(session, workspace))
            if not left:
                return
            for process in left - asked:  # also those that were started meanwhile
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, sent)
            asked |= left
            if time.monotonic() > until:
                break
            time.sleep(_POLL_S)


def _left(session: int, workspace: Path) -> Iterator[int]:
    """Yield the processes of a command that still run; where the system does not tell, its group as one."""
    if not (_PROC / "self" / "stat").exists():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session, 0)
            yield -session
        return
    mark = os.fsencode(workspace)
    for process in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # After the name, which may hold anything: state, parent, group, session.
            state, _, group, of_session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
            if state in "ZX":
                continue
            if session in (int(group), int(of_session)) or mark in (process / "environ").read_bytes():
                yield int(process.name)
