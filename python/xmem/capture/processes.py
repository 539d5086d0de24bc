"""The processes that a captured command started, and their end: none of them outlives the capture.

Those of its session are found by that. A daemon leaves the session, but keeps the environment, in which the
private folder of the capture is named.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_TERMINATE_S = 2.0
_KILL_S = 5.0
_POLL_S = 0.02
_PROC = Path("/proc")


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
