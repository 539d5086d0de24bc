"""Execution on a Ray cluster: its object store carries the job, so that workers need only this package."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from xmem.errors import ConfigError, SweepError, XmemError
from xmem.files import system
from xmem.records import dataclass
from xmem.sweep.configuration import Chunk, Configuration, cut
from xmem.sweep.evaluate import Finished, evaluate
from xmem.sweep.sweep_job import JobFile

_LARGEST_CHUNK = 256
_AHEAD = 2  # chunks in Ray's hands for each worker
_PATIENCE_S = 10


@dataclass(frozen=True)
class RayExecutor:
    """Executor on the CPUs of a Ray cluster.

    Attributes:
        address: Address of the cluster, as ``ray.init`` takes it; None starts one on this machine that ends
            with the sweep.
        workers: Tasks of one CPU at once; None for as many as the cluster has CPUs.
    """

    address: str | None = None
    workers: int | None = None

    def run(self, job: JobFile, configurations: Sequence[Configuration]) -> Generator[Finished]:
        """See ``Executor``."""
        try:
            import ray
        except ImportError:
            raise ConfigError("--executor ray needs Ray", "run pip install 'xmem-fast[ray]'") from None
        began = not ray.is_initialized()
        if began:
            self._connect(ray)
        waiting: list[Any] = []
        try:
            workers = self.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
            task = ray.remote(num_cpus=1)(_evaluate_copy)
            content = ray.put(job.path.read_bytes())
            for chunk in cut(configurations, workers=workers, largest=_LARGEST_CHUNK):
                waiting.append(task.remote(content, job, chunk))
                if len(waiting) >= _AHEAD * workers:
                    done, waiting = ray.wait(waiting)
                    yield from ray.get(done)
            while waiting:
                done, waiting = ray.wait(waiting)
                yield from ray.get(done)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, XmemError):
                raise error.cause from None
            raise SweepError(f"a Ray worker failed: {error.cause}; finished rows are kept") from error
        except ray.exceptions.RayError as error:
            raise SweepError(f"Ray failed: {error}; finished rows are kept") from error
        finally:
            if ray.is_initialized():
                for chunk_task in waiting:
                    ray.cancel(chunk_task)
                if began:
                    ray.shutdown()

    def _connect(self, ray: Any) -> None:
        _require_listening(self.address)
        own: dict[str, Any] = {"num_cpus": self.workers, "include_dashboard": False}
        try:
            ray.init(
                address=self.address or "local",
                log_to_driver=False,
                logging_level="ERROR",
                **({} if self.address else own),
            )
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RaySystemError) as error:
            cluster = f"--address {self.address}" if self.address else "a Ray cluster on this machine"
            raise ConfigError(f"{cluster} cannot be used ({error})", "name a running Ray cluster") from error


def _require_listening(address: str | None) -> None:
    """Check that something answers at the address: Ray itself waits for minutes.

    Raises:
        ConfigError: Nothing answers.
    """
    host, separator, port = (address or "").removeprefix("ray://").rpartition(":")
    if not separator or not port.isdecimal():  # such as "auto"
        return
    try:
        socket.create_connection((host, int(port)), _PATIENCE_S).close()
    except OSError as error:
        raise ConfigError(
            f"--address {address} does not answer ({error})", "name a running Ray cluster"
        ) from error


def _own_folder() -> Path:
    """Return a folder for temporary files that no other user can have put anything into.

    Raises:
        SweepError: Another user has made it, or may write to it.
    """
    if system.IS_WINDOWS:  # where the folder of temporary files is the user's own
        folder = Path(tempfile.gettempdir()) / "xmem"
        folder.mkdir(exist_ok=True)
        return folder
    folder = Path(tempfile.gettempdir()) / f"xmem-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SweepError(f"{folder} is not private to this user; remove it, or set TMPDIR")
    return folder


def _evaluate_copy(content: bytes, job: JobFile, chunk: Chunk) -> Finished:
    """Evaluate on a machine that need not see the file of the job."""
    copy = _own_folder() / job.digest
    if not copy.exists() or JobFile.of(copy).digest != job.digest:
        with tempfile.NamedTemporaryFile(dir=copy.parent, delete=False) as partial:
            partial.write(content)
        Path(partial.name).replace(copy)
    return evaluate(JobFile(copy, job.digest), chunk)
