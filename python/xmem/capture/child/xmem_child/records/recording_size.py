"""How much host memory a recording will take when it ends: a run that is recorded to its end may be long.

While it records, torch's profiler keeps a few hundred bytes for each operator. When it stops, it makes
objects of them, which take ten to fourteen times as much (measured with torch 2.6 and 2.12).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_GROWTH = 14
_SHARE = 0.6  # of what is available
_PERIOD_S = 1.0
# A recording of fewer spans is small; what grew is the script's own.
_MANY_SPANS = 1 << 14
_SETTING = "XMEM_RECORDING_BYTES"


class RecordingSize:
    """Tells when a recording should end."""

    def __init__(self) -> None:
        self._begin_bytes = 0
        self._looked_s = 0.0
        setting = os.environ.get(_SETTING, "")
        self._limit_bytes = int(setting) if setting.isdecimal() else None

    def begin(self) -> None:
        """Note what the process holds when the recording begins."""
        self._begin_bytes = _resident_bytes()

    def is_large(self, spans: int) -> bool:
        """Return whether the end of the recording will take more host memory than it should: most of what
        is left, or the setting.

        Args:
            spans: Spans that were recorded so far.
        """
        now_s = time.monotonic()
        if now_s < self._looked_s + _PERIOD_S or (self._limit_bytes is None and spans < _MANY_SPANS):
            return False
        self._looked_s = now_s
        limit = _SHARE * _available_bytes() if self._limit_bytes is None else self._limit_bytes
        return _GROWTH * (_resident_bytes() - self._begin_bytes) > limit


def _resident_bytes() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _available_bytes() -> float:
    """Return what the machine, or the process's control group, can still give; without end if unknown."""
    return min(_limits(), default=float("inf"))


def _limits() -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        (line,) = (x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemAvailable:"))
        yield int(line.split()[1]) * 1024
    root = Path("/sys/fs/cgroup")
    for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        with contextlib.suppress(OSError, ValueError):  # there is no limit: "max"
            yield int((root / most).read_text()) - int((root / used).read_text())
