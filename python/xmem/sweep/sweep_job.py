"""The job of a sweep: a fitted model, or one trace."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from pathlib import Path
from threading import Lock

from xmem.errors import ConfigError, TraceError
from xmem.estimation.observation import Observation, observe
from xmem.files.model_archive import is_model_file
from xmem.records import dataclass
from xmem.scaling import Point, ScalingModel, read_model
from xmem.scaling.dimensions import label

_KEPT = 2  # jobs a worker process holds in memory


@dataclass(frozen=True)
class JobFile:
    """File of a job, and the digest of its content.

    Attributes:
        path: A fitted model or a trace.
        digest: SHA-256 of the file, in hexadecimal.
    """

    path: Path
    digest: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> JobFile:
        """Return the job file at a path.

        Raises:
            TraceError: It cannot be read.
        """
        try:
            with Path(path).open("rb") as file:
                return cls(Path(path).absolute(), hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise TraceError(f"cannot be read: {error.strerror}; check the path", path) from None


@dataclass(frozen=True)
class SweepJob:
    """A job in memory.

    Attributes:
        run: The fitted model, or the observation from the trace.
    """

    run: ScalingModel | Observation

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the dimensions; empty for a trace."""
        return self.run.dimensions if isinstance(self.run, ScalingModel) else ()

    def at(self, point: Point) -> Observation:
        """Return the run at a point.

        Raises:
            ConfigError: The job does not have this point.
        """
        if isinstance(self.run, ScalingModel):
            return self.run.at(point)
        if point:
            raise ConfigError(
                f"{label(point)} cannot be set: the job is a single trace",
                "remove the dimension",
            )
        return self.run


def read_job(path: str | os.PathLike[str]) -> SweepJob:
    """Read a fitted model or a trace, which are told apart by content.

    Raises:
        TraceError: The file is neither, or damaged.
        ConfigError: The traces of the model do not match.
    """
    return SweepJob(read_model(path) if is_model_file(path) else observe(os.fspath(path)))


_jobs: OrderedDict[str, SweepJob] = OrderedDict()
_jobs_lock = Lock()


def job_of(file: JobFile) -> SweepJob:
    """Return the job in a file, read once per process.

    Raises:
        TraceError: The file cannot be used, or is no longer the one of the sweep.
        ConfigError: The traces of the model do not match.
    """
    with _jobs_lock:
        if file.digest not in _jobs:
            if JobFile.of(file.path).digest != file.digest:
                raise TraceError("changed while the sweep ran; start the sweep again", file.path)
            _jobs[file.digest] = read_job(file.path)
            while len(_jobs) > _KEPT:
                _jobs.popitem(last=False)
        _jobs.move_to_end(file.digest)
        return _jobs[file.digest]
