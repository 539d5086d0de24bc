"""Execution with Slurm through submitit: a job array over chunks, on a file system that the nodes share."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from xmem.errors import ConfigError, SweepError
from xmem.records import dataclass
from xmem.sweep.configuration import Configuration, cut
from xmem.sweep.evaluate import Finished, evaluate
from xmem.sweep.sweep_job import JobFile

_LARGEST_CHUNK = 10_000  # a job of Slurm takes seconds to begin


@dataclass(frozen=True)
class SlurmExecutor:
    """Executor in Slurm jobs.

    Attributes:
        folder: Folder in which submitit keeps inputs and results of the jobs; all nodes must see it.
        workers: Number of jobs at once.
        parameters: Parameters for ``submitit.AutoExecutor.update_parameters``, such as ``slurm_partition``;
            ``cluster`` chooses submitit's executor, ``local`` for this machine.
    """

    folder: Path
    workers: int = 8
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def run(self, job: JobFile, configurations: Sequence[Configuration]) -> Generator[Finished]:
        """See ``Executor``."""
        try:
            import submitit
        except ImportError:
            raise ConfigError(
                "--executor slurm needs submitit", "run pip install 'xmem-fast[slurm]'"
            ) from None
        parameters = dict(self.parameters)
        cluster = parameters.pop("cluster", "slurm")
        try:
            executor = submitit.AutoExecutor(folder=self.folder, cluster=cluster)
            executor.update_parameters(
                **{"name": "xmem-sweep", "timeout_min": 60, "cpus_per_task": 1}
                | ({"slurm_array_parallelism": self.workers} if cluster == "slurm" else {})
                | parameters
            )
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            raise ConfigError(f"submitit does not accept --slurm for {cluster} ({error})") from error
        chunks = cut(configurations, workers=self.workers, largest=_LARGEST_CHUNK)
        with executor.batch():
            jobs = [executor.submit(evaluate, job, chunk) for chunk in chunks]
        running = list(jobs)
        try:
            for done in submitit.helpers.as_completed(jobs):
                running.remove(done)
                yield done.result()
        except (submitit.core.utils.FailedJobError, submitit.core.utils.UncompletedJobError) as error:
            raise SweepError(f"a Slurm job failed: {error}; finished rows are kept") from error
        finally:
            for left in running:
                left.cancel()
