"""Pickles of plain data, written piece by piece: rows of NumPy columns become dicts without an object per
row.

The pickle module holds a reference to everything that it has written: gigabytes for a million events. Here
only what is used again is remembered. The opcodes are those of protocol 4 (pickletools documents them) that
readers other than Python's know too, such as PyTorch's viewer in JavaScript; unpickling calls nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xmem.records import dataclass

_PROTOCOL = b"\x80\x04"
_EMPTY_DICT, _EMPTY_LIST, _MARK, _SETITEM, _SETITEMS, _APPEND, _APPENDS = (
    b"}",
    b"]",
    b"(",
    b"s",
    b"u",
    b"a",
    b"e",
)
_TUPLE2, _NONE, _TRUE, _FALSE, _STOP = b"\x86", b"N", b"\x88", b"\x89", b"."
_LONG1, _BINUNICODE, _MEMOIZE, _LONG_BINGET = b"\x8a", b"X", b"\x94", b"j"
_BATCH_ROWS = (
    1000  # as many as the pickle module appends at once too: JavaScript takes them as arguments of one call
)
_INT64_BYTES = 8
_REFERENCE_BYTES = 4


@dataclass(frozen=True)
class References:
    """A column of values that were written before.

    Attributes:
        values: uint32, as returned by `PlainPickle.remember`.
    """

    values: NDArray[np.uint32]


Columns: TypeAlias = Mapping[str, NDArray[np.int64] | References]
"""By key; whole numbers, or references."""


class PlainPickle:
    """Writes one value; containers are opened and filled in the order in which they stand in the file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._remembered = 0
        self._texts: dict[str, int] = {}
        file.write(_PROTOCOL)

    def open_dict(self) -> None:
        """Begin a dict: of keys and values in turn, each with `close_item`."""
        self._file.write(_EMPTY_DICT)

    def open_list(self) -> None:
        """Begin a list: of values, each with `close_element`, or of rows."""
        self._file.write(_EMPTY_LIST)

    def close_item(self) -> None:
        """Put the last two values, a key and its value, into the open dict."""
        self._file.write(_SETITEM)

    def close_element(self) -> None:
        """Put the last value into the open list."""
        self._file.write(_APPEND)

    def value(self, value: Any) -> None:
        """Write a dict, list, pair, text, whole number, truth value or None; a known text as a reference."""
        write = self._file.write
        match value:
            case None:
                write(_NONE)
            case bool():
                write(_TRUE if value else _FALSE)
            case int():
                write(_LONG1 + bytes([_INT64_BYTES]))
                write(value.to_bytes(_INT64_BYTES, "little", signed=True))
            case str():
                if value in self._texts:
                    self.reference(self._texts[value])
                else:
                    self._texts[value] = self._remember(value)
            case dict():
                self.open_dict()
                for key, of_key in value.items():
                    self.value(key)
                    self.value(of_key)
                    self.close_item()
            case list():
                self.open_list()
                for element in value:
                    self.value(element)
                    self.close_element()
            case (first, second):
                self.value(first)
                self.value(second)
                write(_TUPLE2)
            case _:
                raise TypeError(f"not plain data: {value!r}")

    def remember(self, value: Any) -> int:
        """Write a value that is written once; ``reference`` writes it again."""
        if isinstance(value, str):
            self.value(value)
            return self._texts[value]
        self.value(value)
        self._file.write(_MEMOIZE)
        self._remembered += 1
        return self._remembered - 1

    def remember_list(self, numbers: Sequence[int]) -> int:
        """Write a list of remembered values; ``reference`` writes it again."""
        references = (_LONG_BINGET + number.to_bytes(_REFERENCE_BYTES, "little") for number in numbers)
        self._file.write(_EMPTY_LIST + _MARK + b"".join(references) + _APPENDS + _MEMOIZE)
        self._remembered += 1
        return self._remembered - 1

    def reference(self, number: int) -> None:
        """Write a remembered value again."""
        self._file.write(_LONG_BINGET + number.to_bytes(_REFERENCE_BYTES, "little"))

    def rows(self, columns: Columns, begin: int, end: int) -> None:
        """Put a dict for each row of a part of some columns into the open list; the keys must be remembered.

        Args:
            columns: By key, of equal length.
            begin: First row.
            end: Behind the last row.
        """
        template, places = self._row_template(columns)
        for first in range(begin, end, _BATCH_ROWS):
            last = min(first + _BATCH_ROWS, end)
            rows = np.tile(np.frombuffer(template, np.uint8), (last - first, 1))
            for place, values in places:
                width = values.dtype.itemsize
                rows[:, place : place + width] = values[first:last].view(np.uint8).reshape(-1, width)
            self._file.write(_MARK + rows.tobytes() + _APPENDS)

    def close(self) -> None:
        """End the pickle, not the file."""
        self._file.write(_STOP)

    def _remember(self, text: str) -> int:
        encoded = text.encode(errors="surrogatepass")
        self._file.write(_BINUNICODE + len(encoded).to_bytes(4, "little") + encoded + _MEMOIZE)
        self._remembered += 1
        return self._remembered - 1

    def _row_template(self, columns: Columns) -> tuple[bytes, list[tuple[int, NDArray[Any]]]]:
        """The bytes of a row, and where in them the values of each column stand, encoded for there."""
        template = bytearray(_EMPTY_DICT + _MARK)
        places: list[tuple[int, NDArray[Any]]] = []
        for key, column in columns.items():
            template += _LONG_BINGET + self._texts[key].to_bytes(_REFERENCE_BYTES, "little")
            if isinstance(column, References):
                template += _LONG_BINGET
                values = np.ascontiguousarray(column.values, "<u4")
            else:
                template += _LONG1 + bytes([_INT64_BYTES])
                values = np.ascontiguousarray(column, "<i8")
            places.append((len(template), values))
            template += bytes(values.dtype.itemsize)
        return bytes(template + _SETITEMS), places
