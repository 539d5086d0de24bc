"""Messages to the user while a command is captured: on standard error, between the command's own output."""

from __future__ import annotations

import contextlib
import sys


def note(message: str) -> None:
    """Write a message to the user."""
    write_to_stderr(f"xmem-fast: {message}\n".encode())


def write_to_stderr(chunk: bytes) -> None:
    """Pass on what the command printed there."""
    # Someone may have put a text-only object in place of sys.stderr, or closed it.
    with contextlib.suppress(OSError, ValueError):
        binary = getattr(sys.stderr, "buffer", None)
        if binary is not None:
            binary.write(chunk)
        else:
            sys.stderr.write(chunk.decode(errors="replace"))
        sys.stderr.flush()
