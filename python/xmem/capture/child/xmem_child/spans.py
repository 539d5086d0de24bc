"""The spans that a capture adds to the trace: modules, the user's source lines, and host-only work.

Line spans come from the calls into torch, not from ``sys.settrace``: memory is allocated inside such calls,
so the innermost frame of the user's own code at each call is all that attribution needs. A pure Python loop
costs nothing, debuggers and coverage keep their tracer, and the number of spans is bounded by the number of
torch calls.

A span is (category, name, thread id, begin, end) in nanoseconds of the Unix clock, half-open.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import FrameType

Span = tuple[str, str, int, int, int]


def _installed_prefixes() -> tuple[str, ...]:
    folders = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages() if hasattr(site, "getsitepackages") else [])
    folders.add(str(Path(__file__).resolve().parent.parent))
    folders.add(os.environ.get("XMEM_PHANTOM", ""))  # code that torch.compile writes there
    return tuple(f"{folder}/" for folder in folders if folder)


class _Run:
    """Adjacent torch calls of one thread from one source line; a begin of ``-1``: nothing is open."""

    __slots__ = ("begin", "end", "host_begin", "host_end", "line", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_native_id()
        self.line: tuple[str, int] | None = None
        self.begin = self.end = -1
        self.host_begin = self.host_end = -1


class SpanRecorder:
    """Collects spans of all threads while ``active``."""

    def __init__(self) -> None:
        self.active = False
        self.spans: list[Span] = []
        self._local = threading.local()
        self._runs: list[_Run] = []
        self._installed = _installed_prefixes()
        self._started_in = f"{Path.cwd()}/"
        self._shown: dict[str, str] = {}  # by file; empty for installed code
        self._line_names: dict[tuple[str, int], str] = {}

    def add(self, category: str, name: str, begin_ns: int, end_ns: int) -> None:
        """Record a span of the calling thread."""
        if self.active:
            self.spans.append((category, name, threading.get_native_id(), begin_ns, end_ns))

    def note_call(self, begin_ns: int, end_ns: int, on_host: bool) -> None:
        """Record one call into torch; adjacent ones from the same line are merged.

        Args:
            begin_ns: Before the call.
            end_ns: After it.
            on_host: Whether it touched and made host tensors only.
        """
        run = self._run()
        line = self.user_line(sys._getframe())
        if run.begin < 0 or line != run.line:
            self._close(run)
            run.line = line
            run.begin = begin_ns
        run.end = end_ns
        if on_host:
            if run.host_begin < 0:
                run.host_begin = begin_ns
            run.host_end = end_ns
        else:
            self._close_host(run)

    def flush(self) -> None:
        """End the calling thread's runs, so that they never cross the border of another span."""
        if self.active:
            self._close(self._run())

    def finish(self) -> None:
        """End the runs of all threads and stop recording."""
        for run in self._runs:
            self._close(run)
        self.active = False

    def user_line(self, frame: FrameType | None) -> tuple[str, int] | None:
        """(path, line) of the innermost frame of the user's own code, as seen from the start folder."""
        while frame is not None:
            path = frame.f_code.co_filename
            shown = self._shown.get(path)
            if shown is None:
                shown = self._shown[path] = (
                    path.removeprefix(self._started_in) if self._is_users(path) else ""
                )
            if shown:
                return shown, frame.f_lineno
            frame = frame.f_back
        return None

    def _is_users(self, path: str) -> bool:
        if path.startswith("<") or "/site-packages/" in path or "/dist-packages/" in path:
            return False
        return not path.startswith(self._installed)

    def _run(self) -> _Run:
        run: _Run | None = getattr(self._local, "run", None)
        if run is None:
            run = self._local.run = _Run()
            self._runs.append(run)
        return run

    def _close(self, run: _Run) -> None:
        self._close_host(run)
        if run.begin >= 0 and run.line is not None:
            name = self._line_names.get(run.line)
            if name is None:
                name = self._line_names[run.line] = f"{run.line[0]}:{run.line[1]}"
            self.spans.append(("xmem_line", name, run.thread, run.begin, run.end))
        run.begin = -1

    def _close_host(self, run: _Run) -> None:
        if run.host_begin >= 0:
            self.spans.append(("xmem_host", "host", run.thread, run.host_begin, run.host_end))
            run.host_begin = -1


now_ns = time.time_ns
