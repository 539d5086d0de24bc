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
