"""Executors of configurations: this process, a Ray cluster, or Slurm. Nothing here schedules by itself."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from xmem.sweep.configuration import Configuration
from xmem.sweep.evaluate import Finished
from xmem.sweep.sweep_job import JobFile


class Executor(Protocol):
    """Executor that cuts configurations into chunks and has them evaluated."""

    def run(self, job: JobFile, configurations: Sequence[Configuration]) -> Generator[Finished]:
        """Yield the rows of each chunk when it is done, in any order.

        Closing the generator gives up chunks that have not begun.

        Raises:
            ConfigError: The workers are not available.
            SweepError: A worker failed for good.
            XmemError: The job cannot be used.
        """
