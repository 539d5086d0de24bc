"""Tables as Parquet files: names dictionary-encoded, zstd, one row group per piece."""

from __future__ import annotations

from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any

from xmem.errors import ConfigError
from xmem.reports.tables.columns import Column, Table, pieces

if TYPE_CHECKING:
    import pyarrow


def require_pyarrow() -> None:
    """Check up front that Parquet can be written.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    if find_spec("pyarrow") is None:
        raise ConfigError("writing Parquet needs pyarrow", "run pip install 'xmem-fast[parquet]'")


def write_parquet(table: Table, file: IO[bytes]) -> int:
    """Write a table.

    Args:
        table: The columns.
        file: File to write to.

    Returns:
        The number of rows.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    require_pyarrow()
    import pyarrow
    from pyarrow import parquet

    batches = (
        pyarrow.record_batch([_array(column) for column in piece], names=[column.name for column in piece])
        for piece in pieces(table)
    )
    first = next(batches)
    with parquet.ParquetWriter(file, first.schema, compression="zstd") as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    return len(table[0].values)


def _array(column: Column) -> pyarrow.Array[Any]:
    import pyarrow

    if column.names is not None:
        indices = pyarrow.array(column.values.astype("int32"), mask=column.values == -1)
        return pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(column.names, pyarrow.string()))
    missing = None if column.missing is None else column.values == column.missing
    return pyarrow.array(column.values, mask=missing)
