"""Execution in threads of this process: the replay is native and runs without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import field

from xmem.files.system import usable_processors
from xmem.records import dataclass
from xmem.sweep.configuration import Configuration, cut
from xmem.sweep.evaluate import Finished, evaluate
from xmem.sweep.sweep_job import JobFile

_LARGEST_CHUNK = 64  # some tenths of a second


@dataclass(frozen=True)
class LocalExecutor:
    """Executor on this machine.

    Attributes:
        workers: Number of threads.
    """

    workers: int = field(default_factory=usable_processors)

    def run(self, job: JobFile, configurations: Sequence[Configuration]) -> Generator[Finished]:
        """See ``Executor``."""
        threads = ThreadPoolExecutor(self.workers)
        try:
            chunks = cut(configurations, workers=self.workers, largest=_LARGEST_CHUNK)
            for done in as_completed([threads.submit(evaluate, job, chunk) for chunk in chunks]):
                yield done.result()
        finally:
            threads.shutdown(cancel_futures=True)
