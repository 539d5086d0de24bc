"""Tells the parent where the script is: its phase and iteration, and on request the lines that its main
thread is at."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import threading
import time
from pathlib import Path

# Of the real-time signals, one that nobody is known to use. Its handler is C code that needs no GIL, so that
# it answers also while Python waits inside a library.
STACKS_SIGNAL = signal.SIGRTMIN + 13 if hasattr(signal, "SIGRTMIN") else None


class Progress:
    """Writes ``progress.PROCESS`` into the workspace whenever the phase changes; a file of one line of
    JSON."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._path = workspace / f"progress.{os.getpid()}"
        self._phase = ""
        self._stacks: object = None
        self._lock = threading.Lock()

    def note(self, phase: str) -> None:
        """Report what the script does from now on."""
        if phase == self._phase:
            return
        with self._lock, contextlib.suppress(OSError):
            if not self._phase:
                self._answer_with_stacks()
            self._phase = phase
            partial = self._workspace / f"{self._path.name}.partial"
            partial.write_text(json.dumps({"phase": phase, "since": time.time(), "process": os.getpid()}))
            partial.replace(self._path)

    def in_fork(self) -> None:
        """Start afresh in a fork, which is another process."""
        self._path = self._workspace / f"progress.{os.getpid()}"
        self._phase = ""
        self._lock = threading.Lock()

    def _answer_with_stacks(self) -> None:
        if STACKS_SIGNAL is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
            return  # the script's own
        # The parent sends the signal only while the file has this name: from when somebody answers until just
        # before the interpreter, which removes the handler when it ends, does so.
        path = self._workspace / f"stacks.{os.getpid()}"
        partial = self._workspace / f"{path.name}.partial"
        self._stacks = file = partial.open("w")
        # Of this thread alone, which answers: frames of a thread that runs meanwhile cannot be read safely.
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=False)
        partial.rename(path)
        atexit.register(path.unlink, missing_ok=True)
