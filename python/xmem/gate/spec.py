"""Jobs to check, in ``xmem.toml`` or in ``[tool.xmem.check]`` of ``pyproject.toml``.

``docs/commands/check.md`` describes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, NoReturn

from xmem.errors import ConfigError
from xmem.files.documents import read_toml
from xmem.gate.limits import Limits, Metric, parse_growth
from xmem.records import dataclass
from xmem.text.units import parse_bytes

MODES = ("auto", "phantom", "fake", "real")
FILE_NAMES = ("xmem.toml", "pyproject.toml")

_LIMIT_KEYS = frozenset(
    ("gpu", "budget", "metric", "confidence", "baseline", "max_growth", "alloc_conf", "torch")
)
_COMMAND_KEYS = frozenset(("iterations", "mode", "timeout_s"))
_KINDS = ("command", "trace", "estimate", "model")


@dataclass(frozen=True)
class Asked:
    """Requested limits of a job.

    Attributes:
        limits: Validated limits.
        gpus: Names of GPUs; empty when none was requested.
        confidence: Confidence of the upper bound, None where the estimate itself is judged.
        baseline: File, or folder with a file per job; None when there is no baseline.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the job, None for that of the recorded run.
        torch_version: PyTorch version that will run it, None for the recorded one.
    """

    limits: Limits = field(default_factory=Limits)
    gpus: tuple[str, ...] = ()
    confidence: float | None = None
    baseline: Path | None = None
    alloc_conf: str | None = None
    torch_version: str | None = None


@dataclass(frozen=True)
class CommandToCapture:
    """A command and its capture settings.

    Attributes:
        arguments: Its arguments, the program first.
        iterations: Optimizer steps to record.
        mode: One of ``MODES``.
        timeout_s: Timeout in seconds.
    """

    arguments: tuple[str, ...]
    iterations: int = 3
    mode: str = "auto"
    timeout_s: float | None = None

    def __str__(self) -> str:
        return " ".join(self.arguments)


@dataclass(frozen=True)
class CheckedJob:
    """Something to check.

    Attributes:
        name: Name for people, and of its baseline in a folder.
        source: A trace, an estimate or a fitted model; or a command.
        asked: Requested limits.
        at: Point at which to evaluate a fitted model.
    """

    name: str
    source: str | CommandToCapture
    asked: Asked = field(default_factory=Asked)
    at: str | None = None


def find_spec(folder: Path) -> Path | None:
    """Return the file in a folder that lists the jobs to check, None when there is none.

    Raises:
        ConfigError: A file of that name is not valid TOML.
    """
    for name in FILE_NAMES:
        path = folder / name
        if path.is_file() and _table_of(path, _content(path)) is not None:
            return path
    return None


def read_jobs(path: Path) -> tuple[CheckedJob, ...]:
    """Read and check the jobs of a file, in its order.

    Raises:
        ConfigError: The file cannot be read or is invalid; the message names the file and the key.
    """
    table = _table_of(path, _content(path))
    if table is None:
        where = "[tool.xmem.check]" if path.name == "pyproject.toml" else "[check]"
        raise ConfigError(f"{path} has no table {where}", "add it with the jobs to check")
    return _CheckFile(path).jobs(table)


def _content(path: Path) -> dict[str, Any]:
    return read_toml(path)


def _table_of(path: Path, content: Mapping[str, Any]) -> Any:
    if path.name == "pyproject.toml":
        tool = content.get("tool")
        content = tool.get("xmem", {}) if isinstance(tool, dict) else {}
    return content.get("check") if isinstance(content, dict) else None


@dataclass(frozen=True)
class _CheckFile:
    """Reads the table of one file; errors name it."""

    path: Path

    def jobs(self, table: object) -> tuple[CheckedJob, ...]:
        if not isinstance(table, dict):
            self._refuse("check is not a table")
        shared = {key: value for key, value in table.items() if key != "jobs"}
        self._require_keys("", shared, _LIMIT_KEYS | _COMMAND_KEYS)
        jobs = table.get("jobs")
        if not isinstance(jobs, dict) or not jobs:
            self._refuse("jobs has no tables", "add a table for each job, such as [check.jobs.gpt2]")
        return tuple(self._job(name, entry, shared) for name, entry in jobs.items())

    def _job(self, name: str, entry: object, shared: Mapping[str, Any]) -> CheckedJob:
        if not isinstance(entry, dict) or sum(kind in entry for kind in _KINDS) != 1:
            self._refuse(
                f"jobs.{name} needs exactly one source",
                "set one of command = [ARGUMENT, ...], trace = FILE, estimate = FILE, model = FILE",
            )
        kind = next(kind for kind in _KINDS if kind in entry)
        own = _LIMIT_KEYS | {kind}
        if kind == "command":
            own |= _COMMAND_KEYS
        if kind == "model":
            own |= {"at"}
        self._require_keys(f"jobs.{name}.", entry, own)
        at = entry.get("at")
        if at is not None and not isinstance(at, str):
            self._refuse(f"jobs.{name}.at = {at!r} is not a string", 'write it like "batch=16,seq=128"')
        settings = {**shared, **entry}
        source = self._command(name, settings) if kind == "command" else self._file(name, kind, entry[kind])
        return CheckedJob(name, source, self._asked(name, settings), at)

    def _command(self, name: str, settings: Mapping[str, Any]) -> CommandToCapture:
        arguments = settings["command"]
        if not isinstance(arguments, list) or not arguments or not all(isinstance(a, str) for a in arguments):
            self._refuse(
                f"jobs.{name}.command = {arguments!r} is not a list of arguments",
                'write it like ["python", "train.py"]',
            )
        iterations, mode = settings.get("iterations", 3), settings.get("mode", "auto")
        timeout_s = settings.get("timeout_s")
        if type(iterations) is not int or iterations < 1:
            self._refuse(f"jobs.{name}: iterations = {iterations!r} is invalid", "use a whole number above 0")
        if mode not in MODES:
            self._refuse(f"jobs.{name}: mode = {mode!r} is invalid", f"use one of {', '.join(MODES)}")
        if timeout_s is not None and (type(timeout_s) not in (int, float) or timeout_s <= 0):
            self._refuse(
                f"jobs.{name}: timeout_s = {timeout_s!r} is invalid", "use a number of seconds above 0"
            )
        return CommandToCapture(tuple(arguments), iterations, mode, timeout_s)

    def _file(self, name: str, kind: str, file: object) -> str:
        if not isinstance(file, str) or not file:
            self._refuse(f"jobs.{name}.{kind} = {file!r} is invalid", "use the name of a file")
        return file if "://" in file else str(self.path.parent / file)

    def _asked(self, name: str, settings: Mapping[str, Any]) -> Asked:
        gpus = settings.get("gpu", ())
        gpus = (gpus,) if isinstance(gpus, str) else gpus
        if not isinstance(gpus, list | tuple) or not all(isinstance(gpu, str) for gpu in gpus):
            self._refuse(
                f"jobs.{name}: gpu = {gpus!r} is invalid", "use the name of a GPU, or a list of names"
            )
        for key in ("baseline", "alloc_conf", "torch"):
            if not isinstance(settings.get(key, ""), str):
                self._refuse(f"jobs.{name}: {key} = {settings[key]!r} is not a string")
        confidence = settings.get("confidence")
        if confidence is not None and type(confidence) is not float:
            self._refuse(f"jobs.{name}: confidence = {confidence!r} is invalid", "use a fraction such as 0.9")
        try:
            limits = limits_of(
                budget=self._size(name, "budget", settings.get("budget")),
                metric=settings.get("metric"),
                max_growth=self._size(name, "max_growth", settings.get("max_growth")),
                upper=confidence is not None,
            )
        except ConfigError as error:
            self._refuse(f"jobs.{name}: {error.message}", error.hint)
        baseline = settings.get("baseline")
        return Asked(
            limits=limits,
            gpus=tuple(gpus),
            confidence=confidence,
            baseline=None if baseline is None else self.path.parent / baseline,
            alloc_conf=settings.get("alloc_conf"),
            torch_version=settings.get("torch"),
        )

    def _size(self, name: str, key: str, value: object) -> str | None:
        if type(value) is int:
            return str(value)
        if value is not None and not isinstance(value, str):
            self._refuse(f"jobs.{name}: {key} = {value!r} is invalid", 'use a size such as "10GiB"')
        return value

    def _require_keys(self, where: str, table: Mapping[str, Any], known: frozenset[str] | set[str]) -> None:
        unknown = set(table) - known
        if unknown:
            self._refuse(f"unknown key {where}{min(unknown)}", f"use one of {', '.join(sorted(known))}")

    def _refuse(self, problem: str, hint: str = "") -> NoReturn:
        raise ConfigError(f"{self.path}: {problem}", hint)


def limits_of(
    *, budget: str | None, metric: str | None, max_growth: str | None, upper: bool = False
) -> Limits:
    """Parse limits from texts; those not given keep their defaults.

    Raises:
        ConfigError: A text is invalid, or two of them cannot be combined.
    """
    metrics = [known.value for known in Metric]
    if metric is not None and metric not in metrics:
        raise ConfigError(f"unknown metric {metric!r}", f"use one of {', '.join(metrics)}")
    chosen = Metric.DEVICE_PEAK if metric is None else Metric(metric)
    if upper and chosen is Metric.ALLOCATED:
        raise ConfigError(
            "a confidence cannot be combined with the metric allocated",
            "use device_peak or reserved, which have bounds",
        )
    return Limits(
        budget_bytes=None if budget is None else parse_bytes(budget),
        metric=chosen,
        upper=upper,
        max_growth=Limits().max_growth if max_growth is None else parse_growth(max_growth),
    )
