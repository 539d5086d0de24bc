"""Measured runs as a file of comma-separated values, in the columns of the published ones.

What is read: family, model, optimizer, batch_size, gpu, gpu_total_bytes, zero_grad_mode, nvml_peak_bytes and
real_oom; ``set`` is kept where it is there. What NVML saw is a difference to the start of the
run, so it has no context in it, but what kernels and libraries load on the way.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from xmem.devices import Device, find_device
from xmem.errors import ConfigError

IDENTITY = ("set", "family", "model", "optimizer", "batch_size", "gpu", "zero_grad_mode")
FAMILIES = ("CNN", "Transformer")
MIB = 1 << 20
# By family and GPU: the second run of a job in one process reads less than the first by this.
_LOADED_MIB = {
    ("CNN", "3060"): 26,
    ("CNN", "4060"): 24,
    ("Transformer", "3060"): 18,
    ("Transformer", "4060"): 14,
}
_ASSUMED_LOADED_MIB = 26


@dataclass(frozen=True)
class Job:
    """What was trained: all that a capture depends on but the machine.

    Attributes:
        family: One of ``FAMILIES``.
        model: As the file names it.
        optimizer: A class of ``torch.optim``, or ``transformers.Adafactor``.
        batch: Samples an iteration.
        zero_grad: Where gradients are dropped, as ``train.py`` takes it.
        tokens: Length of the sequences of a transformer.
    """

    family: str
    model: str
    optimizer: str
    batch: int
    zero_grad: int = 0
    tokens: int = 128

    def at(self, batch: int) -> Job:
        """The job at another batch size."""
        return replace(self, batch=batch)

    def command(self, python: str, script: Path) -> list[str]:
        """What runs it."""
        numbers = [str(self.batch), str(self.zero_grad), "--tokens", str(self.tokens)]
        return [python, str(script), self.family, self.model, self.optimizer, *numbers]

    def __str__(self) -> str:
        length = f"-t{self.tokens}" if self.family == "Transformer" else ""
        model = self.model.rpartition("/")[2]
        return f"{model}-{self.optimizer}-b{self.batch}-z{self.zero_grad}{length}"


@dataclass(frozen=True)
class MeasuredRun:
    """A row of the file; sizes in bytes.

    Attributes:
        identity: Its cells in the columns of ``IDENTITY``, as they are written.
        job: What was trained.
        gpu: Name of the GPU.
        total_bytes: Memory of the GPU as CUDA reports it.
        peak_bytes: Most that NVML saw beyond the start; of a run that failed, what it saw last.
        out_of_memory: Whether it failed for want of memory.
    """

    identity: Mapping[str, str]
    job: Job
    gpu: str
    total_bytes: int
    peak_bytes: int
    out_of_memory: bool

    @property
    def loaded_bytes(self) -> int:
        """What kernels and libraries add to the device's used memory during the run."""
        return _LOADED_MIB.get((self.job.family, self.gpu[-4:]), _ASSUMED_LOADED_MIB) * MIB

    @property
    def device(self) -> Device:
        """The GPU, of this size, with what is loaded on the way as part of its context.

        Raises:
            ConfigError: Not known by this name.
        """
        device = find_device(self.gpu)
        bare_context_bytes = device.context_bytes - device.loaded_kernels_bytes
        return replace(
            device,
            total_memory_bytes=self.total_bytes,
            context_bytes=bare_context_bytes + self.loaded_bytes,
            loaded_kernels_bytes=self.loaded_bytes,
        )


def read_runs(path: Path, adafactor: str = "transformers.Adafactor") -> list[MeasuredRun]:
    """All rows of a file.

    Args:
        path: The file.
        adafactor: Which one runs where the file says Adafactor, as ``train.py`` names it.

    Raises:
        ConfigError: A column is missing or a cell cannot be read; the message names line and column.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        return [_run(_Row(row, f"{path}, line {reader.line_num}"), adafactor) for row in reader]


@dataclass(frozen=True)
class _Row:
    cells: Mapping[str, str | None]
    where: str

    def text(self, column: str) -> str:
        cell = self.cells.get(column)
        if not cell:
            raise ConfigError(f"{self.where}: {column} is empty or missing", "a value in this column")
        return cell

    def count(self, column: str) -> int:
        cell = self.text(column)
        if not cell.isdecimal() or int(cell) == 0:
            raise ConfigError(f"{self.where}: {column} is {cell!r}", "a positive integer")
        return int(cell)


def _run(row: _Row, adafactor: str) -> MeasuredRun:
    family = row.text("family")
    if family not in FAMILIES:
        raise ConfigError(f"{row.where}: family is {family!r}", " or ".join(FAMILIES))
    mode = row.cells.get("zero_grad_mode") or ""
    if mode not in ("", "null", "0", "1", "2"):
        raise ConfigError(f"{row.where}: zero_grad_mode is {mode!r}", "0, 1, 2, null or nothing")
    outcome = row.text("real_oom").lower()
    if outcome not in ("true", "false"):
        raise ConfigError(f"{row.where}: real_oom is {outcome!r}", "true or false")
    optimizer = row.text("optimizer")
    return MeasuredRun(
        identity={column: row.cells.get(column) or "" for column in IDENTITY},
        job=Job(
            family=family,
            model=row.text("model"),
            optimizer=adafactor if optimizer == "Adafactor" else optimizer,
            batch=row.count("batch_size"),
            zero_grad=int(mode) if mode.isdecimal() else 0,
        ),
        gpu=row.text("gpu"),
        total_bytes=row.count("gpu_total_bytes"),
        peak_bytes=row.count("nvml_peak_bytes"),
        out_of_memory=outcome == "true",
    )
