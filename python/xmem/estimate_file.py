"""Estimates as files: the JSON that ``estimate -o`` writes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from xmem.errors import TraceError
from xmem.estimate_result import Estimate

_BEGINNING = re.compile(rb'\s*\{\s*"schema_version"\s*:')
_BEGINNING_BYTES = 256


def is_estimate_file(path: str | os.PathLike[str]) -> bool:
    """Whether the file is an estimate, told by its first key."""
    if not Path(path).is_file():
        return False
    try:
        with Path(path).open("rb") as file:
            return _BEGINNING.match(file.read(_BEGINNING_BYTES)) is not None
    except OSError:
        return False  # the reader of traces says why


def read_estimate(path: str | os.PathLike[str]) -> Estimate:
    """Read an estimate.

    Raises:
        TraceError: It cannot be read, is no estimate, or one of another schema version.
    """
    name = os.fspath(path)
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}; check the path", name) from None
    except json.JSONDecodeError as error:
        raise TraceError(
            f"no JSON ({error.msg}); write it with `xmem-fast estimate TRACE -o FILE`", name, error.pos
        ) from None
    except UnicodeDecodeError as error:
        raise TraceError(
            "no UTF-8 text; write it with `xmem-fast estimate TRACE -o FILE`", name, error.start
        ) from None
    try:
        if not isinstance(data, dict):
            raise TraceError("no estimate; write it with `xmem-fast estimate TRACE -o FILE`")
        return Estimate.from_json(data)
    except TraceError as error:
        raise TraceError(error.message, name) from None
