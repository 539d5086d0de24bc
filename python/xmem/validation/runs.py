"""Measured training runs as a file of comma-separated values, in the columns of the published ones.

family, model, optimizer, batch_size, gpu, gpu_total_bytes, nvml_peak_bytes and real_oom are required; set,
zero_grad_mode and the estimates of other methods (``PUBLISHED``) are optional. The NVML figures are relative
to the start of the run: the allocator's reserved memory and what was loaded on the way, without the CUDA
context.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from xmem.errors import ConfigError, TraceError
from xmem.records import dataclass
from xmem.text.numbers import whole_number

IDENTITY = ("set", "family", "model", "optimizer", "batch_size", "gpu", "zero_grad_mode")
FAMILIES = ("CNN", "Transformer")
# Column of each published method; estimates of xMem and DNNMem include the CUDA context.
PUBLISHED = {
    "xMem": "xmem_estimate_bytes",
    "DNNMem": "dnnmem_estimate_bytes",
    "SchedTune": "schedtune_estimate_bytes",
    "LLMem": "llmem_estimate_bytes",
}
_REQUIRED = (
    *(column for column in IDENTITY if column not in ("set", "zero_grad_mode")),
    "gpu_total_bytes",
    "nvml_peak_bytes",
    "real_oom",
)
_ZERO_GRAD_MODES = ("", "null", "0", "1", "2")

Identity = tuple[str, ...]


@dataclass(frozen=True)
class MeasuredRun:
    """A row of the file; sizes in bytes.

    Attributes:
        where: File and line.
        identity: Its cells in the columns of ``IDENTITY``, as they are written; repeated runs share it.
        set: Experiment that it belongs to, empty when the file does not say.
        family: One of ``FAMILIES``.
        model: Model as the file names it.
        optimizer: Optimizer as the file names it.
        batch: Samples per iteration.
        gpu: Name of the GPU.
        zero_grad: Where gradients are dropped: 0 at the start of an iteration, 1 before backward, 2 after the
            step.
        total_bytes: Memory of the GPU as CUDA reports it.
        peak_bytes: Most that NVML saw beyond the start; for a run that failed, what it saw last.
        out_of_memory: Whether it ran out of memory.
        published_bytes: Estimates of other methods, by the names of ``PUBLISHED``.
        published_second_oom: Whether the run failed when xMem's estimate was its limit; None where it was not
            tried, because xMem predicted that the run fails.
        published_seconds: Time of xMem's analysis, None where the file does not say.
    """

    where: str
    identity: Identity
    set: str
    family: str
    model: str
    optimizer: str
    batch: int
    gpu: str
    zero_grad: int
    total_bytes: int
    peak_bytes: int
    out_of_memory: bool
    published_bytes: Mapping[str, int]
    published_second_oom: bool | None
    published_seconds: float | None

    @property
    def title(self) -> str:
        """Title of the run, for people."""
        model = self.model.rpartition("/")[2]
        mode = f" zero_grad {self.zero_grad}" if self.zero_grad else ""
        return f"{model} {self.optimizer} {self.batch}{mode}, {self.gpu.rpartition('NVIDIA ')[2]}"


def read_runs(path: str | os.PathLike[str]) -> tuple[MeasuredRun, ...]:
    """Read all rows of a file.

    Raises:
        ConfigError: There is no such file.
        TraceError: A column is missing or a cell cannot be read; the error names file, line and column.
    """
    with read_table(path, _REQUIRED) as rows:
        runs = tuple(_run(row) for row in rows)
    if not runs:
        raise TraceError("the file has a header but no runs; write one row for each run", path)
    return runs


class TableRow:
    """A row of a file of comma-separated values, whose cells are checked on access."""

    def __init__(self, path: str | os.PathLike[str], line: int, cells: Mapping[str, str | None]) -> None:
        self.where = f"{os.fspath(path)}:{line}"
        self._path = path
        self._line = line
        self._cells = cells

    def text(self, column: str) -> str:
        """Return the cell; empty where the file has no such column.

        Raises:
            TraceError: The line ends before the column.
        """
        if column in self._cells and self._cells[column] is None:
            self.refuse(column, "missing", "in every row")
        return (self._cells.get(column) or "").strip()

    def filled(self, column: str) -> str:
        """Return the cell, which must not be empty."""
        text = self.text(column)
        if not text:
            self.refuse(column, "empty", "filled in")
        return text

    def choice(self, column: str, known: tuple[str, ...]) -> str:
        """Return the cell, which must be one of the given choices."""
        text = self.text(column)
        if text not in known:
            self.refuse(column, repr(text), " or ".join(name or "empty" for name in known))
        return text

    def count(self, column: str) -> int:
        """Return the cell as a positive whole number."""
        text = self.filled(column)
        number = whole_number(text)
        if not number:
            self.refuse(column, repr(text), "a positive whole number")
        return number

    def number(self, column: str) -> float | None:
        """Return the cell as a finite number, None where it is empty."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not abs(value) < float("inf"):
            self.refuse(column, repr(text), "a number or empty")
        return value

    def truth(self, column: str) -> bool | None:
        """Return the cell as true or false, None where it is empty."""
        text = self.text(column).lower()
        if text not in ("", "true", "false"):
            self.refuse(column, repr(text), "true, false or empty")
        return None if not text else text == "true"

    def refuse(self, column: str, found: str, expected: str) -> NoReturn:
        """Raise an error about a cell.

        Raises:
            TraceError: Always.
        """
        raise TraceError(
            f"line {self._line}, column {column} must be {expected}, not {found}; correct or remove the line",
            self._path,
        )


@contextmanager
def read_table(path: str | os.PathLike[str], required: tuple[str, ...]) -> Iterator[Iterator[TableRow]]:
    """Yield the rows of a file that has at least these columns.

    Raises:
        ConfigError: There is no such file.
        TraceError: The file is not text, or a column is missing; the error names it.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or ()
            missing = [column for column in required if column not in header]
            if missing:
                raise TraceError(
                    f"line 1: the header has no column {', '.join(missing)}; it must name at least "
                    f"{', '.join(required)}",
                    path,
                )
            yield (TableRow(path, reader.line_num, row) for row in reader)
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)} cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"not comma-separated text ({error}); save it as CSV in UTF-8", path) from error


def _run(row: TableRow) -> MeasuredRun:
    mode = row.choice("zero_grad_mode", _ZERO_GRAD_MODES)
    out_of_memory = row.truth("real_oom")
    if out_of_memory is None:
        row.refuse("real_oom", "empty", "true or false")
    estimates = {method: row.number(column) for method, column in PUBLISHED.items()}
    return MeasuredRun(
        where=row.where,
        identity=tuple(row.text(column) for column in IDENTITY),
        set=row.text("set"),
        family=row.choice("family", FAMILIES),
        model=row.filled("model"),
        optimizer=row.filled("optimizer"),
        batch=row.count("batch_size"),
        gpu=row.filled("gpu"),
        zero_grad=whole_number(mode) or 0,
        total_bytes=row.count("gpu_total_bytes"),
        peak_bytes=row.count("nvml_peak_bytes"),
        out_of_memory=bool(out_of_memory),
        # -1 means that a method does not support the model.
        published_bytes={method: round(size) for method, size in estimates.items() if size and size > 0},
        published_second_oom=row.truth("xmem_second_round_oom"),
        published_seconds=row.number("xmem_runtime_s"),
    )
