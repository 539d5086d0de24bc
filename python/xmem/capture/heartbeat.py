"""Reports on a captured script while it is silent: what it does, since when, and at which line it is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from xmem.capture.processes import is_running
from xmem.records import dataclass

_SILENCE_S = 10.0
_STARTING = "starting"  # the first phase; launchers stay in it
_ANSWER_S = 0.5
_ENDED = re.compile(r"(iteration|after) (\d+)")  # `iteration 4, in Linear`, `after 3 iterations`
_POLL_S = 0.02
# The same as in `xmem_child.records.progress`.
STACKS_SIGNAL = signal.SIGRTMIN + 13 if hasattr(signal, "SIGRTMIN") else None
_FRAME = re.compile(r'^  File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$')
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]|/lib/python3\.\d+/|^<frozen ")
_OURS = "/xmem_child/"


@dataclass(frozen=True)
class _Process:
    number: int
    phase: str
    since: float
    iterations: int  # that have ended


class Heartbeat:
    """Says where the script is whenever it has been silent for a while.

    Args:
        workspace: The private folder of the capture.
        say: Takes a line for the user.
    """

    def __init__(self, workspace: Path, say: Callable[[str], None]) -> None:
        self._workspace = workspace
        self._say = say
        self._began = time.monotonic()
        self._heard = self._began
        self._iterations = 0
        self._progressed = self._began

    def heard(self) -> None:
        """Note that the script printed something itself."""
        self._heard = time.monotonic()

    def beat(self) -> None:
        """Report where the script is if it has been silent; call this now and then."""
        now = time.monotonic()
        if now - self._heard >= _SILENCE_S:
            self._heard = now
            self._say(f"{now - self._began:.0f} s: {self.last_seen() or 'torch is not imported yet'}")

    def without_progress_s(self) -> float:
        """Return for how many seconds no iteration has ended; 0 before the first."""
        ended = max((process.iterations for process in self._processes()), default=0)
        if ended != self._iterations:
            self._iterations, self._progressed = ended, time.monotonic()
        return time.monotonic() - self._progressed if ended else 0.0

    def has_begun(self) -> bool:
        """Return whether a process has used the GPU."""
        return any(process.phase != _STARTING for process in self._processes())

    def last_seen(self) -> str:
        """Say what the script does, since when, and where it is; empty before it has imported torch."""
        processes = self._processes()
        if not processes:
            return ""
        # The process that has come furthest; of several, the one that has been there longest.
        shown = min(processes, key=lambda process: (process.phase == _STARTING, process.since))
        text = f"{shown.phase}, for {max(time.time() - shown.since, 0):.0f} s"
        if len(processes) > 1:
            text = f"process {shown.number}: {text}"
        place = self._place(shown.number)
        return f"{text}, {place}" if place else text

    def _processes(self) -> list[_Process]:
        found = []
        for path in self._workspace.glob("progress.*"):
            if path.suffix == ".partial":
                continue
            with contextlib.suppress(OSError, ValueError, KeyError):
                note = json.loads(path.read_text())
                if not is_running(note["process"]):
                    continue
                ended = _ENDED.match(note["phase"])
                count = int(ended[2]) - (ended[1] == "iteration") if ended else 0
                found.append(_Process(note["process"], note["phase"], note["since"], count))
        return found

    def _place(self, process: int) -> str:
        """Return the lines that the main thread of a process is at: the user's own, and the innermost of
        all."""
        file = self._workspace / f"stacks.{process}"
        if STACKS_SIGNAL is None or not file.exists() or not _catches(process, STACKS_SIGNAL):
            return ""
        try:
            known = file.stat().st_size
            os.kill(process, STACKS_SIGNAL)
            return place_of(_answer(file, known))
        except OSError:  # it ended meanwhile, and took its file along
            return ""


def _catches(process: int, number: int) -> bool:
    """Return whether a process handles a signal, which would end it otherwise: one that has replaced itself
    with ``exec`` has lost its handlers."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def _answer(file: Path, known: int) -> str:
    """Return what a process adds to its file within a moment."""
    until = time.monotonic() + _ANSWER_S
    text = ""
    while time.monotonic() < until:
        time.sleep(_POLL_S)
        with file.open(errors="replace") as opened:
            opened.seek(known)
            answer = opened.read()
        if answer and answer == text:
            break  # all of it
        text = answer
    return text


def place_of(stacks: str) -> str:
    """Return where the main thread is, from what ``faulthandler`` wrote about it."""
    frames = [
        match for line in stacks.splitlines() if (match := _FRAME.match(line)) and _OURS not in match["path"]
    ]
    if not frames:
        return ""
    innermost = frames[0]
    own = next((frame for frame in frames if not _INSTALLED.search(frame["path"])), None)
    places = [f"at {own['path']}:{own['line']}"] if own else []
    if innermost is not own:
        shown = re.sub(r".*/(?:site|dist)-packages/", "", innermost["path"])
        places.append(f"in {innermost['name']} ({shown}:{innermost['line']})")
    return ", ".join(places)
