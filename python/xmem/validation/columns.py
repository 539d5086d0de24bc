"""Columns of whole numbers in one line of text, as ``bench/gpu`` packs them (bench/gpu/SCHEMA.md)."""

from __future__ import annotations

import base64
import lzma
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


def unpack(packed: Mapping[str, Any]) -> dict[str, Int64]:
    """Return the columns by name, read-only.

    Args:
        packed: ``rows``, ``columns`` and ``data``.

    Raises:
        ValueError: The text is damaged, or does not match the other fields.
    """
    names, rows = packed["columns"], packed["rows"]
    try:
        raw = lzma.decompress(base64.b85decode(packed["data"]))
    except (lzma.LZMAError, ValueError) as error:
        raise ValueError(f"the columns are damaged ({error})") from None
    width = np.dtype(np.int64).itemsize
    if len(raw) != len(names) * rows * width:
        raise ValueError(f"the columns have {len(raw)} bytes, not {len(names)} x {rows} x {width}")
    planes = np.frombuffer(raw, np.uint8).reshape(len(names), width, rows)
    differences = np.ascontiguousarray(planes.transpose(0, 2, 1)).view("<i8")[:, :, 0]
    columns = np.cumsum(differences, axis=1, dtype=np.int64)
    columns.flags.writeable = False
    return dict(zip(names, columns, strict=True))
