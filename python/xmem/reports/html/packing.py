"""Columns of numbers as the page stores them: base64 of little-endian typed arrays, each name once."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

UNIT_BYTES = 512
"""Unit of sizes in the page: sizes of blocks and segments are whole multiples of it."""

Column = dict[str, str]
_DTYPES: dict[str, str] = {"u8": "<u1", "u32": "<u4", "i32": "<i4", "f64": "<f8"}


def pack(values: NDArray[Any] | Sequence[int], kind: Literal["u8", "u32", "i32", "f64"]) -> Column:
    """Pack a column that the page's script reads back as the typed array of its kind."""
    column = np.ascontiguousarray(np.asarray(values), dtype=_DTYPES[kind])
    return {kind: base64.b64encode(column.tobytes()).decode("ascii")}


def pack_units(size_bytes: NDArray[np.int64]) -> Column:
    """Pack sizes in units of 512 bytes, rounded up: as uint32, which is enough for 2 TiB, else as float64."""
    units = -(-size_bytes // UNIT_BYTES)
    return pack(units, "u32" if units.max(initial=0) < 2**32 else "f64")


def json_for_script(value: Any) -> str:
    """Return JSON that is safe inside a ``<script>`` element, whatever texts it holds."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


class NamesUsed:
    """The names that a part of the page uses, numbered from 0 in order of first use."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._number: dict[int, int] = {}

    def numbers_of(self, ids: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return each id's number among the names used; -1 stays -1."""
        distinct, where = np.unique(ids, return_inverse=True)
        numbers = [
            -1 if name < 0 else self._number.setdefault(name, len(self._number)) for name in distinct.tolist()
        ]
        return np.array(numbers, np.int32)[where]

    @property
    def names(self) -> list[str]:
        """The names by number."""
        return [self._names[name] for name in self._number]
