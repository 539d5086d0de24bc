"""The table of results as a file: Parquet, CSV or JSON lines, by suffix; it appears once complete."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from xmem.errors import ConfigError, SweepError
from xmem.printable import inert

Row = Mapping[str, Any]

_ROWS_AT_ONCE = 10_000
_TEXT = ("what_if", "alloc_conf", "torch", "gpu", "error")
_TRUTH = ("fits",)
_FRACTION = ("seconds",)


def require_writable(path: Path) -> None:
    """Check up front that results can be written to a file.

    Raises:
        ConfigError: The suffix is unknown, the folder is missing, or the library for the format is missing.
    """
    if path.suffix not in _WRITERS:
        raise ConfigError(
            f"-o {path} does not name a known format", f"use a name that ends in one of {', '.join(_WRITERS)}"
        )
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"-o {path} is in a folder that does not exist", "create it, or name another file")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ConfigError(
            "writing Parquet needs pyarrow",
            "run pip install 'xmem-fast[parquet]', or write a .csv or .jsonl file",
        )


def write_results(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write rows in the order given.

    Raises:
        SweepError: The file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _WRITERS[path.suffix](partial, columns, rows)
        partial.replace(path)
    except OSError as error:
        raise SweepError(
            f"{path} cannot be written: {error.strerror}; no row is lost: run the same command again"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(
            {name: inert(value) if isinstance(value, str) else value for name, value in row.items()}
            for row in rows
        )


def _write_json_lines(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({name: row[name] for name in columns}) + "\n" for row in rows)


def _write_parquet(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = list(rows)
    texts = {name for row in rows[:1] for name in columns if isinstance(row[name], str)}  # of layouts

    def type_of(name: str) -> Any:
        if name in _TEXT or name in texts:
            return pyarrow.string()
        if name in _TRUTH:
            return pyarrow.bool_()
        return pyarrow.float64() if name in _FRACTION else pyarrow.int64()

    schema = pyarrow.schema([(name, type_of(name)) for name in columns])
    remaining = iter(rows)
    with parquet.ParquetWriter(path, schema) as writer:
        while batch := list(islice(remaining, _ROWS_AT_ONCE)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))


_WRITERS: dict[str, Callable[[Path, Sequence[str], Iterable[Row]], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
}
