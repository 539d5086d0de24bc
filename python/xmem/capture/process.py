"""Runs the captured command: its output passes through, and what it started ends with it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from xmem.capture.heartbeat import Heartbeat
from xmem.capture.host_memory import HostMemory, HostMemoryWatch
from xmem.capture.notes import note, write_to_stderr
from xmem.capture.processes import CommandProcesses, start_options
from xmem.errors import CaptureError
from xmem.files.interrupts import uninterrupted
from xmem.records import dataclass

_POLL_S = 0.05
_FINISH_S = 30.0  # time for a script that took too long to reach a point where its recording can end
_STALLED_S = 1800.0  # without a new iteration, where no --timeout was set: the script does not train any more
_LOOK_S = 5.0  # between two looks at the progress of all processes, which are many files
_UNWIND_S = 30.0  # time for a script to leave once its trace is complete: workers to join, files to close
_DRAIN_S = 2.0
_KEPT_LINES = 20
# The profiler's remarks on memory older than the recording, and on a recording off the main thread.
_OUR_NOISE = re.compile(
    rb"(?:(?:\[rank\d+\]:)?\[W[^\n]*before the profiling started"
    rb"|ERROR: External init callback must run in same thread)[^\n]*\n"
)


@dataclass(frozen=True)
class Ended:
    """How the command ended: by itself with a status, or by us (``exit_status`` None).

    Attributes:
        timed_out: Its time was up, and it did not come to a point where its recording could end.
        last_output: The last lines of its standard error.
        last_seen: What it did when its time was up, as far as it said.
    """

    exit_status: int | None
    timed_out: bool
    last_output: str
    last_seen: str = ""
    host_memory: HostMemory | None = None


def run_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    workspace: Path,
    timeout_s: float | None,
    stdout: int | None = None,
) -> Ended:
    """Run a command until it ends, takes too long, or lingers after its status appeared in ``workspace``.

    A command that takes too long is first asked to finish if it has used the GPU: what was seen of its memory
    may be enough. Standard input and output are this process's own, unless ``stdout`` is another file
    descriptor; standard error is copied through as it comes, to keep its last lines for messages.

    Raises:
        CaptureError: The command cannot be started.
    """
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            bufsize=0,
            **start_options(),
        )
    except OSError as error:
        raise CaptureError(f"{command[0]} cannot be started: {error.strerror}; check the command") from error
    assert process.stderr is not None
    processes = CommandProcesses(process, workspace)
    heartbeat = Heartbeat(workspace, note)
    tail = _Tail(process.stderr, heartbeat.heard)
    memory = HostMemoryWatch(process.pid)
    try:
        timed_out, last_seen = _wait(process, workspace, timeout_s, heartbeat)
        exit_status = process.poll()
    finally:
        with uninterrupted():
            host_memory = memory.stop()
            processes.end()
            process.wait()
    return Ended(exit_status, timed_out, tail.lines(), last_seen, host_memory)


def _wait(
    process: subprocess.Popen[bytes], workspace: Path, timeout_s: float | None, heartbeat: Heartbeat
) -> tuple[bool, str]:
    """Wait for the end of the command; return whether the time was up first, and what it did then."""
    status, finish = workspace / "status.json", workspace / "finish"
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    reported_at: float | None = None
    last_seen, is_asked = "", False
    look_at, is_stalled = 0.0, False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
            return False, last_seen
        now = time.monotonic()
        if reported_at is None and status.exists():
            reported_at = now
        if reported_at is not None:
            if now - reported_at > _UNWIND_S:
                return False, last_seen
            continue
        heartbeat.beat()
        if deadline is None and now >= look_at:
            look_at = now + _LOOK_S
            is_stalled = heartbeat.without_progress_s() > _STALLED_S
        if deadline is None and is_stalled:
            note(
                f"no iteration has ended for {_STALLED_S / 60:.0f} minutes; ending with what was seen "
                "(--timeout waits longer)"
            )
            deadline = now
        if deadline is None or now < deadline:
            continue
        if is_asked or not heartbeat.has_begun():
            return True, last_seen or heartbeat.last_seen()
        last_seen, is_asked = heartbeat.last_seen(), True
        finish.touch()
        deadline = now + _FINISH_S


class _Tail:
    """Copies a stream to our standard error from a thread and remembers its end."""

    def __init__(self, stream: IO[bytes], on_output: Callable[[], None]) -> None:
        self._stream = stream
        self._on_output = on_output
        self._kept: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._partial = b""
        self._thread = threading.Thread(target=self._copy, name="xmem-stderr", daemon=True)
        self._thread.start()

    def lines(self) -> str:
        """Return the last lines; a process that outlives the command may hold the stream open, so this waits
        briefly."""
        self._thread.join(_DRAIN_S)
        return b"\n".join([*self._kept, self._partial]).decode(errors="replace").strip("\n")

    def _copy(self) -> None:
        with self._stream:
            while chunk := self._stream.read(65536):
                chunk = _OUR_NOISE.sub(b"", chunk)
                write_to_stderr(chunk)
                self._on_output()
                *whole, rest = (self._partial + chunk).split(b"\n")
                self._kept.extend(whole)
                self._partial = rest[-4096:]
