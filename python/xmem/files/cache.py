"""Where xMem keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return ``XMEM_CACHE``, or else ``xmem-fast`` in the user's cache folder."""
    chosen = os.environ.get("XMEM_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "xmem-fast"


def make_private(folder: Path) -> None:
    """Make a folder that only this user may enter, and those above it that do not exist.

    ``Path.mkdir(mode, parents=True)`` would leave the latter open to all that the umask lets in.

    Raises:
        OSError: It cannot be made.
    """
    if not folder.parent.exists():
        make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
