"""When NCCL's watchdogs see that a collective is over.

A watchdog is a thread of a process group that looks every 100 ms. Beside a GPU, whose iterations take about
as long, it sees the collectives of one iteration during the next, or a little later. Beside a phantom, whose
iterations take seconds, it would see them at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

_ALL = (1 << 64) - 1
_PATIENCE_MS = 2_000

# The records of modded-nanogpt take 56 to 99 ms for an iteration on eight H100.
_MOST_ITERATIONS = 1.5
_AS_LATE_AS_CAN_BE = 2
_GOLDEN = (5**0.5 - 1) / 2


def looks() -> Iterator[float]:
    """Yield how many iterations after the collectives of each iteration a watchdog looks for them.

    The times are spread evenly (by the golden ratio), for looks and iterations follow clocks of their own.
    The first are as late as any, so that a run of few iterations holds what a long one comes to hold.
    """
    yield from [_MOST_ITERATIONS] * _AS_LATE_AS_CAN_BE
    part = 0.0
    while True:
        part = (part + _GOLDEN) % 1
        yield part * _MOST_ITERATIONS


class Watchdogs:
    """All of this process, which see everything at first."""

    def __init__(self) -> None:
        phantom = ctypes.CDLL(None)
        self._recorded = phantom.xmem_phantom_recorded_events
        self._recorded.restype = ctypes.c_uint64
        self._launched = phantom.xmem_phantom_launched
        self._launched.restype = ctypes.c_int64
        self._show = phantom.xmem_phantom_show_watchdogs
        self._show.argtypes = [ctypes.c_uint64]
        self._show.restype = None
        self._wait = phantom.xmem_phantom_wait_for_watchdogs
        self._wait.argtypes = [ctypes.c_int64]
        self._wait.restype = None

    def events(self) -> int:
        """How many events were recorded so far."""
        return int(self._recorded())

    def launches(self) -> int:
        """How many kernels this process has launched so far."""
        return int(self._launched())

    def show(self, last_event: int, *, wait: bool) -> None:
        """Show the work before this event, and hide what comes later.

        Args:
            last_event: Its number.
            wait: Whether to wait until they have looked.
        """
        self._show(last_event)
        if wait:
            self._wait(_PATIENCE_MS)

    def show_all(self) -> None:
        """Show everything, now and from now on."""
        self._show(_ALL)
