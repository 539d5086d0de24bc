"""Exit statuses of ``xmem-fast``."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit statuses that scripts may rely on."""

    DONE = 0
    DOES_NOT_FIT = 1
    DIFFERS = 1  # `replay`: simulator and recording diverge
    GREW = 1  # `diff`: grew by more than --fail-on-growth allows
    USAGE = 2
    BAD_INPUT = 3
    # sysexits.h, EX_SOFTWARE: a fault of xmem's own must not read as "does not fit".
    INTERNAL = 70
    # 128 + SIGINT and 128 + SIGPIPE, as shells report them.
    INTERRUPTED = 130
    BROKEN_PIPE = 141
