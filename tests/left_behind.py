"""What a capture may leave: processes that name its folder in their environment or arguments."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of living processes that name the folder (Linux)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) == os.getpid() or ") Z " in (process / "stat").read_text():
                continue
            said = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            if os.fsencode(folder) in said:
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def until(holds: Callable[[], bool], patience_s: float) -> bool:
    """Wait for something; return whether it came."""
    end = time.monotonic() + patience_s
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()
