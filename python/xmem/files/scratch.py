"""Private folders that a run removes when it ends, and the next run where it could not.

A folder is claimed by a lock on the file `owner` in it. The system drops the lock with the process, however
that ended, and in whichever container it ran.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xmem.files.interrupts import uninterrupted

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

OWNER = "owner"


@contextmanager
def scratch_folder(prefix: str = "xmem-", parent: Path | None = None) -> Iterator[Path]:
    """Make a folder that only this user may enter; it is removed when the block ends.

    Folders of the same prefix whose run was killed are removed first.

    Args:
        prefix: Beginning of its name.
        parent: Its place; by default that of temporary files.

    Raises:
        OSError: It cannot be made.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    _remove_dead(parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    lock = _claim(folder)
    try:
        yield folder
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)
            if lock >= 0:
                os.close(lock)


def _claim(folder: Path) -> int:
    """Lock a folder's owner, which appears only when it is locked; -1 where there are no locks."""
    if fcntl is None:
        return -1
    unlocked = folder / f"{OWNER}.partial"
    descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks
        os.close(descriptor)
        return -1
    unlocked.replace(folder / OWNER)
    return descriptor


def _remove_dead(parent: Path, prefix: str) -> None:
    with contextlib.suppress(OSError):
        for folder in parent.iterdir():
            if folder.name.startswith(prefix) and not folder.is_symlink() and _is_dead(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: Path) -> bool:
    """Return whether a folder was claimed by a run that has ended."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # it is not one of ours, is not claimed yet, or belongs to another user
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
