"""Columns of whole numbers as one line of text.

Differences of neighbours, split into planes of bytes, are what xz can compress; base 85 makes text of them.
Both sides are a few lines with nothing but the standard library, which every GPU machine has.
"""

from __future__ import annotations

import base64
import lzma
import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

_BYTES = 8


def pack(columns: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Columns of equal length as a JSON value.

    Args:
        columns: Numbers that fit an int64, whose differences do too.

    Returns:
        ``rows``, ``columns`` (the names in order) and ``data``.
    """
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise ValueError(f"columns of different lengths: {sorted(lengths)}")
    planes = b"".join(_planes(column) for column in columns.values())
    compressed = lzma.compress(planes, check=lzma.CHECK_CRC32, preset=9 | lzma.PRESET_EXTREME)
    return {
        "rows": lengths.pop(),
        "columns": list(columns),
        "data": base64.b85encode(compressed).decode("ascii"),
    }


def _planes(column: Sequence[int]) -> bytes:
    """The differences as little-endian int64: all first bytes, then all second bytes, and so on."""
    differences = array("q", column[:1])
    differences.extend(later - earlier for earlier, later in pairwise(column))
    if sys.byteorder == "big":
        differences.byteswap()
    raw = differences.tobytes()
    return b"".join(raw[byte::_BYTES] for byte in range(_BYTES))
