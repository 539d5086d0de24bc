"""Writing files whole: what was there before stays until the new contents are complete."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, or leave everything as it was: the data goes beside it and takes its place when complete.

    A device or a pipe has no contents that could be kept, and is written to as it is. A link stays one.

    Raises:
        OSError: It cannot be written; nothing of it is left behind.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        if path.exists():
            shutil.copymode(path, partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
