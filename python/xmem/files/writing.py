"""Writing files whole: what was there before stays until the new contents are complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from xmem.errors import ConfigError

_ABANDONED_S = 600.0


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for what is written piece by piece; it takes its place when the block ends.

    Where the block raises, everything is left as it was. A device or a pipe has no contents that could be
    kept, and is written to as it is. A link stays one.

    Raises:
        OSError: It cannot be written; nothing of it is left behind.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve()
    _remove_old(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        if path.exists():
            shutil.copymode(path, partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _remove_old(path: Path) -> None:
    """Remove what a killed process left of this file, once nobody has written to it for a while."""
    with contextlib.suppress(OSError):
        for partial in path.parent.iterdir():
            if partial.name.startswith(f".{path.name}.") and partial.suffix == ".partial":
                with contextlib.suppress(OSError):
                    if time.time() - partial.stat().st_mtime > _ABANDONED_S:
                        partial.unlink()


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, or leave everything as it was, as :func:`writing` does.

    Raises:
        OSError: It cannot be written; nothing of it is left behind.
    """
    with writing(path) as file:
        file.write(data)


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Report a file that cannot be written in the block under the user's name for it, such as ``-o
    out.json``.

    Raises:
        ConfigError: In place of an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{what} cannot be written ({error.strerror})") from error
