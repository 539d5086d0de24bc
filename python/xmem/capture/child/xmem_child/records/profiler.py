"""Sets up torch's profiler as a capture needs it."""

from __future__ import annotations

import ctypes
import functools
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.autograd.profiler
import torch.profiler
from torch.autograd.profiler_util import EventList

from ..patches import Patches
from ..system import library_file
from ..watching.spans import SpanRecorder

# The engine behind torch.profiler, whose own start-up would import all of inductor.
_Profile = torch.autograd.profiler.profile
_NO_LOG = 99
_ERROR_LOG = 2
_begin, _end = _Profile.__enter__, _Profile.__exit__


class Profiler:
    """One recording of operators and allocations, in the thread that starts it, in threads that ask for it,
    and in those of the autograd engine."""

    def __init__(self, stacks: bool, shapes: bool) -> None:
        self._profile = _Profile(
            use_kineto=True, profile_memory=True, record_shapes=shapes, with_stack=stacks, with_modules=stacks
        )

        self._follow = _ThreadFollower()
        self._runs = False

    def start(self) -> None:
        """Begin recording; whatever happened before is not in the trace."""
        _begin(self._profile)
        self._runs = True

    def follow_thread(self) -> None:
        """Record the calling thread too; does nothing if it is recorded already or no recording runs."""
        if self._runs:
            self._follow()

    def stop(self) -> None:
        """End the recording and keep it; does nothing if it has ended."""
        if not self._runs:
            return
        # The thread that began it may be gone, and this one may never have called torch.
        self.follow_thread()
        self._runs = False
        with self._follow.quiet():
            _end(self._profile, None, None, None)

    def export(self, path: Path) -> None:
        """Write what was recorded as Chrome JSON, and let go of it."""
        self._profile.export_chrome_trace(str(path))
        self._profile.kineto_results = None


class _ThreadFollower:
    """Switches a running profile on for the calling thread.

    ``torch::autograd::profiler::enableProfilerInChildThread`` (profiler_kineto.h, since torch 2.1) gives a
    thread the state of the thread that profiles, as autograd's engine does with its own. Python does not
    have it. It ends with the thread. A library that lacks it leaves the thread to the allocator's history.
    """

    def __init__(self) -> None:
        self._followed = threading.local()
        self._enable: Any = None
        folder = Path(torch.__file__).parent / "lib"
        try:
            library = ctypes.CDLL(str(folder / library_file("torch_cpu")))
            enable = library["_ZN5torch8autograd8profiler27enableProfilerInChildThreadEv"]
            self._is_enabled = library["_ZN5torch8autograd8profiler29isProfilerEnabledInMainThreadEv"]
            self._level = ctypes.c_int.in_dll(
                ctypes.CDLL(str(folder / library_file("c10"))), "FLAGS_caffe2_log_level"
            )
        except (OSError, AttributeError, ValueError):
            return
        self._enable = enable
        self._enable.restype = None
        self._is_enabled.restype = ctypes.c_bool

    def __call__(self) -> None:
        if getattr(self._followed, "done", False):
            return
        self._followed.done = True
        if self._enable is None or torch.autograd._profiler_enabled() or not self._is_enabled():
            return
        with self.quiet():
            self._enable()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Silence torch's warning that threads share one recording, which is intended here."""
        if self._enable is None:
            yield
            return
        level = self._level.value
        self._level.value = max(level, _ERROR_LOG)
        try:
            yield
        finally:
            self._level.value = level


def keep_quiet(patches: Patches) -> None:
    """Keep the log lines of torch's profiler library off the standard error of the process.

    When a process profiles for the first time, the library reads its level from the environment, so this must
    run before and after the start of a profile.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / library_file("torch_cpu")))
        level = ctypes.c_int.in_dll(library, "_ZN9libkineto6Logger14severityLevel_E")
    except (OSError, ValueError):  # named or linked in another way
        return
    patches.on_undo(functools.partial(setattr, level, "value", level.value))
    level.value = _NO_LOG


def break_spans_at_annotations(spans: SpanRecorder, patches: Patches) -> None:
    """Keep merged spans from crossing the border of an annotation (a step, a batch, the script's own)."""
    annotation = torch.autograd.profiler.record_function
    for name in ("__enter__", "__exit__"):
        patches.replace(annotation, name, _after_flush(getattr(annotation, name), spans))


def _after_flush(method: Callable[..., Any], spans: SpanRecorder) -> Callable[..., Any]:
    @functools.wraps(method)
    def flushed(*args: Any) -> Any:
        spans.flush()
        return method(*args)

    return flushed


def switch_off_script_profiling(assume: Callable[[str], None], patches: Patches) -> None:
    """Make the script's own profiler one that never starts: two profilers cannot run at once."""
    for profile, names in (
        (torch.profiler.profile, ("start", "stop", "step")),
        (_Profile, ("__enter__", "__exit__")),
    ):
        for name in names:
            patches.replace(profile, name, _idle(assume))
    for name in ("export_chrome_trace", "export_stacks"):
        patches.replace(torch.profiler.profile, name, _write_nothing)
    for name in ("key_averages", "events"):
        patches.replace(torch.profiler.profile, name, _no_events)


def _idle(assume: Callable[[str], None]) -> Callable[..., Any]:
    def idle(self: Any, *exception: object, **_options: Any) -> Any:
        assume("the script's own profiling was switched off")
        return None if exception else self

    return idle


def _write_nothing(_profile: object, path: str, *_options: object, **_more: object) -> None:
    """The file of a profile in which nothing happened, for scripts that look at it."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "wt") as file:
        file.write('{"traceEvents": []}')


def _no_events(*_: object, **_options: object) -> EventList:
    return EventList([])
