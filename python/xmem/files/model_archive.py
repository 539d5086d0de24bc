"""What tells a fitted model from other files: asked of every input, so it stands apart from the fit."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from pathlib import Path

INDEX = "model.json"
"""The entry of the archive that lists the others."""

DAMAGED = (KeyError, ValueError, RuntimeError, EOFError, struct.error, zlib.error, zipfile.BadZipFile)
"""What ``zipfile`` raises for odd archives; an unknown compression is a ``NotImplementedError``."""


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Return whether the file is a fitted model, judging by its content; also a damaged one."""
    if not Path(path).is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return INDEX in archive.namelist()
    except DAMAGED:
        return True
