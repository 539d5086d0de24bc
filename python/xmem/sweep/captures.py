"""Jobs that are commands: captured at a few small points, fitted once, and kept beside the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from xmem import __version__
from xmem.devices.gpus import Device
from xmem.files.cache import make_private
from xmem.records import dataclass
from xmem.scaling import write_model
from xmem.scaling.dimensions import substitute

MODES = ("auto", "phantom", "fake", "real")

_READ_WHOLE = 16 << 20  # larger files among the arguments are data, identified by size and time


@dataclass(frozen=True)
class CommandJob:
    """A command and its capture settings.

    Attributes:
        command: Its arguments, with ``{dimension}`` where a dimension goes.
        points: Points at which it is captured; one empty point when it has no dimensions.
        iterations: Optimizer steps to record.
        mode: ``auto``, ``phantom``, ``fake`` or ``real``, as for ``xmem-fast capture``.
        timeout_s: Timeout in seconds.
        world_size: Number of ranks of a job of which only some run.
        ranks: Those that run, as ``--ranks`` takes them.
        gpus_per_node: GPUs of each of its nodes.
        device: GPU that its script sees, None for the default.
    """

    command: tuple[str, ...]
    points: tuple[Mapping[str, int], ...]
    iterations: int
    mode: str
    timeout_s: float | None
    world_size: int | None = None
    ranks: str | None = None
    gpus_per_node: int | None = None
    device: Device | None = None

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        return tuple(self.points[0])


Capture = Callable[[Sequence[str], Path, CommandJob], None]
"""Runs one command and writes its trace."""


@dataclass(frozen=True)
class Captured:
    """A command that was captured.

    Attributes:
        path: The fitted model; the trace of a command without dimensions.
        files: All files that are kept for it.
        made: Number of new captures.
        reused: Number of captures that existed already.
    """

    path: Path
    files: tuple[Path, ...]
    made: int
    reused: int


def captured_job(job: CommandJob, folder: Path, capture: Capture) -> Captured:
    """Make the missing captures; a file appears only when it is complete.

    Raises:
        CaptureError: A run of the command failed.
        TraceError: A file cannot be read or written.
    """
    commands = [substitute(job.command, point) for point in job.points]
    traces = _traces(job, folder)
    missing = [
        (command, trace) for command, trace in zip(commands, traces, strict=True) if not trace.exists()
    ]
    make_private(folder)
    for command, trace in missing:
        capture(command, trace, job)
    path = traces[0]
    if job.dimensions:
        path = _model(traces, folder)
        if not path.exists():
            write_model(path, list(zip(job.points, traces, strict=True)), job.command)
    return Captured(path, (*traces, path), len(missing), len(traces) - len(missing))


def kept_files(job: CommandJob, folder: Path) -> tuple[Path, ...]:
    """Return the files that ``captured_job`` keeps for a job, whether or not they exist."""
    traces = _traces(job, folder)
    return (*traces, _model(traces, folder)) if job.dimensions else tuple(traces)


def _traces(job: CommandJob, folder: Path) -> list[Path]:
    return [folder / f"{_digest(job, substitute(job.command, point))}.json.gz" for point in job.points]


def _model(traces: Sequence[Path], folder: Path) -> Path:
    return folder / f"{_sha256('/'.join(trace.name for trace in traces).encode())}.xmem"


def _digest(job: CommandJob, command: Sequence[str]) -> str:
    """Return a digest of all inputs of a capture that the command shows, including files that it names."""
    content = {
        "command": list(command),
        "files": {argument: _content(Path(argument)) for argument in command},
        "iterations": job.iterations,
        "mode": job.mode,
        "world": [job.world_size, job.ranks, job.gpus_per_node],
        "device": repr(job.device),
        "xmem": __version__,
    }
    return _sha256(json.dumps(content, sort_keys=True).encode())


def _content(path: Path) -> str | None:
    try:
        if not path.is_file():
            return None
        status = path.stat()
        if status.st_size > _READ_WHOLE:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        return _sha256(path.read_bytes())
    except OSError:
        return None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
