"""Work of the capture's own that the profiler does not see: a thread for it, and a switch.

The profiler's state is part of PyTorch's thread-local debugging information
(``c10/util/ThreadLocalDebugInfo.h``, torch 2.6 to 2.13). Without it, a thread allocates unseen.
"""

from __future__ import annotations

import ctypes
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .system import library_file


class Aside:
    """A thread that runs functions, one at a time, and that no mode of the script sees either. A fork of the
    process gets its own."""

    _runs: bool
    _one: threading.Lock

    def __init__(self) -> None:
        self.in_fork()

    def run(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns.

        Raises:
            Exception: What the function raises.
        """
        with self._one:
            if not self._runs:
                self._runs = True
                start = getattr(threading.Thread.start, "__wrapped__", threading.Thread.start)
                start(threading.Thread(target=self._serve, name="xmem-aside", daemon=True))
            self._asked.put(function)
            found, error = self._found.get()
        if error is not None:
            raise error
        return found

    def in_fork(self) -> None:
        """Begin anew, without the thread of the parent process."""
        self._runs = False
        self._asked: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._one = threading.Lock()

    def _serve(self) -> None:
        while True:
            function: Callable[[], Any] | None = self._asked.get()
            answer: tuple[Any, Exception | None]
            try:
                answer = function(), None  # type: ignore[misc]
            except Exception as error:
                # Frames of a traceback would keep the script's tensors alive.
                answer = None, error.with_traceback(None)
            function = None  # its tensors end with the call
            self._found.put(answer)
            del answer


class _SharedPointer(ctypes.Structure):
    """A ``std::shared_ptr`` where a function returns one: larger than two registers, so that its address is
    passed as ABIs pass that of a class with a destructor."""

    _fields_ = (("pointer", ctypes.c_void_p), ("owners", ctypes.c_void_p), ("unused", ctypes.c_void_p * 2))


class Unseen(threading.local):
    """Hides what a thread allocates: ``with unseen: ...``; nested uses are one."""

    def __init__(self) -> None:
        self._depth = 0
        self._kept = _SharedPointer()

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1 and _SWITCH is not None:
            current, force = _SWITCH
            self._kept = current()
            force(ctypes.byref(_SharedPointer()))

    def __exit__(self, *_exception: object) -> None:
        self._depth -= 1
        if self._depth == 0 and _SWITCH is not None:
            _SWITCH[1](ctypes.byref(self._kept))

    def begin_seen(self) -> bool:
        """Let the profiler see what follows, inside such a context; returns whether that changed anything."""
        if self._depth and _SWITCH is not None:
            _SWITCH[1](ctypes.byref(self._kept))
            return True
        return False

    def end_seen(self) -> None:
        """End what ``begin_seen`` began."""
        assert _SWITCH is not None
        current, force = _SWITCH
        self._kept = current()
        force(ctypes.byref(_SharedPointer()))


# ``std::shared_ptr`` of libstdc++, and of libc++.
_FORCE = {
    "linux": "_ZN3c1020ThreadLocalDebugInfo22_forceCurrentDebugInfoESt10shared_ptrIS0_E",
    "darwin": "_ZN3c1020ThreadLocalDebugInfo22_forceCurrentDebugInfoENSt3__110shared_ptrIS0_EE",
}


def _find_switch() -> tuple[Any, Any] | None:
    """Return the functions that read and set the state; None for a build that names them otherwise."""
    try:
        library = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / library_file("c10")))
        current = library["_ZN3c1020ThreadLocalDebugInfo7currentEv"]
        force = library[_FORCE.get(sys.platform, _FORCE["linux"])]
    except (OSError, AttributeError):
        return None
    current.restype, current.argtypes = _SharedPointer, []
    force.restype, force.argtypes = None, [ctypes.c_void_p]
    return current, force


_SWITCH = _find_switch()
