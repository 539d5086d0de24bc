"""The spans that a capture adds to the trace: modules, the user's source lines, and host-only work.

Line spans come from the calls into torch, not from ``sys.settrace``: memory is allocated inside such calls,
so the innermost frame of the user's own code at each call is all that attribution needs. A pure Python loop
costs nothing, debuggers and coverage keep their tracer, and the number of spans is bounded by the number of
torch calls.

A line span is named ``PATH:LINE`` of the user's own code; where an installed package made the call on its
behalf, ``PATH:LINE < PACKAGE_PATH:LINE``, with the path relative to the folder of the packages.

A span is (category, name, thread id, begin, end) in nanoseconds of the Unix clock, half-open.
"""

from __future__ import annotations

import linecache
import os
import re
import site
import sys
import sysconfig
import threading
from pathlib import Path
from types import CodeType, FrameType

from ..masking import masked, with_short_home
from ..system import unix_clock, with_slashes

Span = tuple[str, str, int, int, int]
# (path, line) of the user's frame and of the package's; a path is empty where there is no such frame.
Place = tuple[str, int, str, int]

_PACKAGE = " < "  # prefix of the shown path of an installed package
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/(?!torch/|functorch/|xmem/)(.+)")
_NOTEBOOK_CELL = "<ipython-input-"
_MOST_TEXT = 200


def _installed_prefixes() -> tuple[str, ...]:
    folders = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages() if hasattr(site, "getsitepackages") else [])
    folders.add(str(Path(__file__).resolve().parents[4]))  # xmem itself
    folders.add(os.environ.get("XMEM_PHANTOM", ""))  # code that torch.compile writes there
    return tuple(f"{with_slashes(folder)}/" for folder in folders if folder)


class _Run:
    """Adjacent torch calls of one thread from one source line; a begin of ``-1``: nothing is open."""

    __slots__ = ("begin", "end", "host_begin", "host_end", "place", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_native_id()
        self.place: Place | None = None
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
        self._started_in = f"{with_slashes(str(Path.cwd()))}/"
        self._shown: dict[str, str] = {}  # by file; empty for torch and the standard library
        self._names: dict[Place, str] = {}
        self._code: dict[str, tuple[CodeType, int]] = {}  # by shown line

    def add(self, category: str, name: str, begin_ns: int, end_ns: int) -> None:
        """Record a span of the calling thread."""
        if self.active:
            self.spans.append((category, name, threading.get_native_id(), begin_ns, end_ns))

    def note_call(self, begin_ns: int, end_ns: int, on_host: bool) -> None:
        """Record one call into torch; adjacent ones from the same line are merged.

        Args:
            begin_ns: Time before the call.
            end_ns: Time after it.
            on_host: Whether it touched and made only host tensors.
        """
        run = self._run()
        # A variable that holds its own frame would be a cycle that keeps the script's tensors alive.
        place = self._place(sys._getframe())
        if run.begin < 0 or place != run.place:
            self._close(run)
            if place not in self._names:
                self._learn(place, sys._getframe())
            run.place = place
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
        """Return (path, line) of the innermost frame of the user's own code, relative to the start folder."""
        path, line, _, _ = self._place(frame)
        return (path, line) if path else None

    def lines(self) -> dict[str, dict[str, str]]:
        """Return the function and the text of each line that a span names, by ``PATH:LINE``."""
        return {
            shown: {
                "function": getattr(code, "co_qualname", code.co_name),
                "text": masked(linecache.getline(code.co_filename, number).strip())[:_MOST_TEXT],
            }
            for shown, (code, number) in self._code.items()
        }

    def _place(self, frame: FrameType | None) -> Place:
        package, package_line = "", 0
        shown_of = self._shown
        while frame is not None:
            path = frame.f_code.co_filename
            shown = shown_of.get(path)
            if shown is None:
                shown = shown_of[path] = self._show(path)
            if shown:
                if shown[0] != " ":
                    return shown, frame.f_lineno, package, package_line
                if not package:
                    package, package_line = shown, frame.f_lineno
            frame = frame.f_back
        return "", 0, package, package_line

    def _learn(self, place: Place, frame: FrameType | None) -> None:
        """Name a place that is seen for the first time, and keep the code of its lines."""
        user, user_line, package, package_line = place
        name = f"{user}:{user_line}" if user else ""
        if package:
            name += f"{package}:{package_line}"
        self._names[place] = name
        wanted = {(user, user_line), (package, package_line)} - {("", 0)}
        while frame is not None and wanted:
            line = self._shown.get(frame.f_code.co_filename, ""), frame.f_lineno
            if line in wanted:
                wanted.remove(line)
                path = line[0].removeprefix(_PACKAGE)
                self._code.setdefault(f"{path}:{line[1]}", (frame.f_code, frame.f_lineno))
            frame = frame.f_back

    def _show(self, path: str) -> str:
        path = with_slashes(path)
        package = _PACKAGES.match(path)
        if package:
            return _PACKAGE + package[1]
        if path.startswith("<") and not path.startswith(_NOTEBOOK_CELL):
            return ""
        if "/site-packages/" in path or "/dist-packages/" in path:
            return ""
        if path.startswith(self._installed):
            return ""
        shown = with_short_home(path.removeprefix(self._started_in))
        return f"./{shown}" if shown.startswith(" ") else shown  # a space begins a package's

    def _run(self) -> _Run:
        run: _Run | None = getattr(self._local, "run", None)
        if run is None:
            run = self._local.run = _Run()
            self._runs.append(run)
        return run

    def _close(self, run: _Run) -> None:
        self._close_host(run)
        if run.begin >= 0 and run.place is not None and (name := self._names[run.place]):
            self.spans.append(("xmem_line", name, run.thread, run.begin, run.end))
        run.begin = -1

    def _close_host(self, run: _Run) -> None:
        if run.host_begin >= 0:
            self.spans.append(("xmem_host", "host", run.thread, run.host_begin, run.host_end))
            run.host_begin = -1


now_ns = unix_clock()
