"""Measured runs with the jobs that were run, and the machine that a job found there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from xmem.devices.gpus import Device, find_device
from xmem.validation.runs import IDENTITY, MeasuredRun
from xmem.validation.runs import read_runs as read_measured

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
        family: CNN or Transformer.
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
class Run:
    """A measured run and the job of it.

    Attributes:
        measured: The row of the file.
        job: What was trained.
    """

    measured: MeasuredRun
    job: Job

    @property
    def identity(self) -> Mapping[str, str]:
        """The row's cells in the columns of ``IDENTITY``, as they are written."""
        return dict(zip(IDENTITY, self.measured.identity, strict=True))

    @property
    def loaded_bytes(self) -> int:
        """What kernels and libraries add to the device's used memory during the run."""
        mib = _LOADED_MIB.get((self.job.family, self.measured.gpu[-4:]), _ASSUMED_LOADED_MIB)
        return mib * MIB

    @property
    def first_record_is_late(self) -> bool:
        """Whether the monitor's first record holds the model already, which the truth, being the most that
        was in use less that record, then leaves out.

        A transformer's run waits for two seconds after the monitor has started, so its first record is of an
        empty device. An image model's run goes on at once, and its first record comes when the model has
        been moved: estimates of ConvNeXt and ResNet, of any batch, optimizer and GPU, are else too high by
        the size of their weights (docs/fidelity.md).
        """
        return self.job.family == "CNN"

    @property
    def device(self) -> Device:
        """The GPU, of this size, with what is loaded on the way as part of its context.

        Raises:
            ConfigError: Not known by this name.
        """
        device = find_device(self.measured.gpu)
        bare_context_bytes = device.context_bytes - device.loaded_kernels_bytes
        return replace(
            device,
            total_memory_bytes=self.measured.total_bytes,
            context_bytes=bare_context_bytes + self.loaded_bytes,
            loaded_kernels_bytes=self.loaded_bytes,
        )


def read_runs(path: Path, adafactor: str = "transformers.Adafactor") -> list[Run]:
    """All rows of a file.

    Args:
        path: The file.
        adafactor: Which one runs where the file says Adafactor, as ``train.py`` names it.

    Raises:
        ConfigError: There is no such file.
        TraceError: A column is missing or a cell cannot be read; names file, line and column.
    """
    return [
        Run(
            row,
            Job(
                family=row.family,
                model=row.model,
                optimizer=adafactor if row.optimizer == "Adafactor" else row.optimizer,
                batch=row.batch,
                zero_grad=row.zero_grad,
            ),
        )
        for row in read_measured(path)
    ]
