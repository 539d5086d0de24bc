"""Runs the captured command: its output passes through, and its end is that of its whole process group."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from xmem.capture.host_memory import HostMemory, HostMemoryWatch
from xmem.errors import CaptureError

_POLL_S = 0.05
_UNWIND_S = 30.0  # for a script to leave once its trace is complete: workers to join, files to close
_TERMINATE_S = 2.0
_KEPT_LINES = 20
# The profiler's remarks on memory older than the recording, and on a recording off the main thread.
_OUR_NOISE = re.compile(
    rb"(?:(?:\[rank\d+\]:)?\[W[^\n]*before the profiling started"
    rb"|ERROR: External init callback must run in same thread)[^\n]*\n"
)


@dataclass(frozen=True)
class Ended:
    """How the command ended: by itself with a status, or by us (``exit_status`` None)."""

    exit_status: int | None
    timed_out: bool
    last_output: str
    host_memory: HostMemory | None = None


def run_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    status: Path,
    timeout_s: float | None,
    stdout: int | None = None,
) -> Ended:
    """Run a command until it ends, takes too long, or lingers after ``status`` appeared.

    Standard input and output are this process's own, unless ``stdout`` is another file descriptor; standard
    error is copied through as it comes, to keep its last lines for messages.

    Raises:
        CaptureError: The command cannot be started.
    """
    try:
        # A session of its own: Ctrl-C reaches us alone, and one signal reaches all that the command started.
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise CaptureError(f"{command[0]} cannot be started: {error.strerror}; check the command") from error
    assert process.stderr is not None
    tail = _Tail(process.stderr)
    memory = HostMemoryWatch(process.pid)
    try:
        timed_out = _wait(process, status, timeout_s)
        exit_status = process.poll()
    except BaseException:
        _end_group(process)
        raise
    finally:
        host_memory = memory.stop()
    if exit_status is None:
        _end_group(process)
    return Ended(exit_status, timed_out, tail.lines(), host_memory)


def _wait(process: subprocess.Popen[bytes], status: Path, timeout_s: float | None) -> bool:
    """Wait for the end of the command; returns whether the time was up first."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    reported_at: float | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
            return False
        now = time.monotonic()
        if reported_at is None and status.exists():
            reported_at = now
        if reported_at is not None:
            if now - reported_at > _UNWIND_S:
                return False
        elif deadline is not None and now > deadline:
            return True


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for sent, patience_s in ((signal.SIGTERM, _TERMINATE_S), (signal.SIGKILL, None)):
        # The leader may be gone while others of its group still run.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)


class _Tail:
    """Copies a stream to our standard error from a thread and remembers its end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._partial = b""
        self._thread = threading.Thread(target=self._copy, name="xmem-stderr", daemon=True)
        self._thread.start()

    def lines(self) -> str:
        """The last lines; a process that outlives the command may hold the stream open, so this waits
        briefly."""
        self._thread.join(_TERMINATE_S)
        return b"\n".join([*self._kept, self._partial]).decode(errors="replace").strip("\n")

    def _copy(self) -> None:
        with self._stream:
            while chunk := self._stream.read(65536):
                chunk = _OUR_NOISE.sub(b"", chunk)
                _write_to_stderr(chunk)
                *whole, rest = (self._partial + chunk).split(b"\n")
                self._kept.extend(whole)
                self._partial = rest[-4096:]


def _write_to_stderr(chunk: bytes) -> None:
    # Someone may have put a text-only object in place of sys.stderr, or closed it.
    with contextlib.suppress(OSError, ValueError):
        binary = getattr(sys.stderr, "buffer", None)
        if binary is not None:
            binary.write(chunk)
        else:
            sys.stderr.write(chunk.decode(errors="replace"))
        sys.stderr.flush()
