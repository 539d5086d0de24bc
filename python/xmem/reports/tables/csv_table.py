"""Tables as CSV (RFC 4180): a line of names, then one line per row; a missing value is an empty field.

A spreadsheet runs a field that begins with ``=``, ``+``, ``-`` or ``@`` as a formula. Texts that do get an
apostrophe in front, which makes them texts; Parquet has them as they are.
"""

from __future__ import annotations

import csv
import io
from typing import IO, Any

from xmem.printable import inert
from xmem.reports.tables.columns import Column, Table, pieces


def write_csv(table: Table, file: IO[bytes]) -> int:
    """Write a table.

    Args:
        table: The columns.
        file: File to write to, in UTF-8.

    Returns:
        The number of rows.
    """
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    try:
        writer = csv.writer(text)
        writer.writerow(column.name for column in table)
        for piece in pieces(table):
            writer.writerows(zip(*map(_fields, piece), strict=True))
    finally:
        text.detach()  # the file is the caller's to close
    return len(table[0].values)


def _fields(column: Column) -> list[Any]:
    values = column.values.tolist()
    if column.names is not None:
        texts = [*map(inert, column.names), ""]  # -1, a missing value, is the last
        return [texts[value] for value in values]
    if column.values.dtype == bool:
        return ["true" if value else "false" for value in values]
    return ["" if value == column.missing else value for value in values]
