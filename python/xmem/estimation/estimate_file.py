"""Estimates as files: the JSON that ``estimate -o`` writes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from xmem.errors import TraceError
from xmem.estimation.estimate import Estimate
from xmem.files.documents import parse_json
from xmem.files.writing import write_whole

_BEGINNING = re.compile(rb'\s*\{\s*"schema_version"\s*:')
_BEGINNING_BYTES = 256
_WRITE_IT = "write it with `xmem-fast estimate TRACE -o FILE`"


def is_estimate_file(path: str | os.PathLike[str]) -> bool:
    """Return whether the file is an estimate, by its first key; a pipe, readable only once, is not."""
    if not Path(path).is_file():
        return False  # nor is an address, or a path that the trace reader reports an error for
    try:
        with Path(path).open("rb") as file:
            return _BEGINNING.match(file.read(_BEGINNING_BYTES)) is not None
    except OSError:
        return False


def read_estimate(path: str | os.PathLike[str]) -> Estimate:
    """Read an estimate.

    Raises:
        TraceError: The file cannot be read, is not an estimate, is damaged, or has another schema version.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}; check the path", name) from None
    if not _BEGINNING.match(text):
        raise TraceError(f"this is not an estimate; {_WRITE_IT}", name)
    try:
        return Estimate.from_json(parse_json(text))
    except json.JSONDecodeError as error:
        raise TraceError(f"this estimate is damaged ({error.msg}); {_WRITE_IT}", name, error.pos) from None
    except UnicodeDecodeError as error:
        raise TraceError(f"this estimate is damaged (not UTF-8); {_WRITE_IT}", name, error.start) from None
    except ValueError as error:
        raise TraceError(f"this estimate is damaged ({error}); {_WRITE_IT}", name) from None
    except TraceError as error:
        raise TraceError(error.message, name) from None


def write_estimate(path: str | os.PathLike[str], estimate: Estimate) -> None:
    """Write an estimate, or leave everything as it was.

    Raises:
        OSError: The file cannot be written.
    """
    write_whole(path, f"{json.dumps(estimate.to_json(), indent=2)}\n".encode())
