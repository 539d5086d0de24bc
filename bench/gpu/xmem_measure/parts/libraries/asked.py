"""Calls of a library's functions, and the answers as a table."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xmem_measure.columns import pack
from xmem_measure.meter import loaded_library


class Functions:
    """The functions of a library, each where this process finds it: some may precede the library's own."""

    def __init__(self, library: str) -> None:
        self._name = library

    def __getattr__(self, function: str) -> Any:
        found = getattr(loaded_library(self._name, function), function)
        setattr(self, function, found)
        return found


@dataclass
class Table:
    """Answers of a function: numbers that it was asked with, then its own.

    Attributes:
        function: Its name; where several functions together give the answer, the last.
        columns: Names of the numbers, those of the answers last.
        rows: A call a row. A call that was refused has the status, negative, for every answer.
    """

    function: str
    columns: Sequence[str]
    rows: list[list[int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The function's name, and the numbers as packed columns."""
        columns = {name: [row[place] for row in self.rows] for place, name in enumerate(self.columns)}
        return {"function": self.function, "calls": pack(columns)}


def wide(number: int) -> ctypes.c_int64:
    """A number of 64 bits, where ctypes would pass 32."""
    return ctypes.c_int64(number)
