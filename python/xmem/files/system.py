"""What operating systems do not have in common, for the modules that need to know which one this is."""

from __future__ import annotations

import os
import sys

IS_WINDOWS = sys.platform == "win32"
"""Whether processes, their ends and their files are those of Windows rather than of POSIX."""


def usable_processors() -> int:
    """Return on how many processors this process may run: where the system does not tell, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
