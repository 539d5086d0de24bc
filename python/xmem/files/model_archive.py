"""What tells a fitted model from other files: asked of every input, so it stands apart from the fit."""

from __future__ import annotations

import os
from pathlib import Path

INDEX = "model.json"
"""The entry of the archive that lists the others."""

_FIRST_BYTES = b"PK"


def errors_of_damage() -> tuple[type[Exception], ...]:
    """Return what ``zipfile`` raises for odd archives; an unknown compression is a
    ``NotImplementedError``."""
    import struct
    import zipfile
    import zlib

    return KeyError, ValueError, RuntimeError, EOFError, struct.error, zlib.error, zipfile.BadZipFile


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Return whether the file is a fitted model, judging by its content; also a damaged one."""
    if not Path(path).is_file():
        return False
    try:
        with Path(path).open("rb") as file:
            begins_like_one = file.read(len(_FIRST_BYTES)) == _FIRST_BYTES
    except OSError:  # whoever reads it as something else says why
        return False
    if not begins_like_one:
        return False
    import zipfile  # which most commands do without

    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return INDEX in archive.namelist()
    except errors_of_damage():
        return True
