"""A sweep as a TOML file: the job, and the configurations to try (``docs/commands/sweep.md``)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from xmem.devices.gpus import Device, custom_device, devices, find_device
from xmem.errors import ConfigError
from xmem.files.documents import read_toml
from xmem.records import dataclass
from xmem.scaling.dimensions import grid, require_dimensions, substitute
from xmem.sweep.captures import MODES, CommandJob
from xmem.sweep.configuration import Configuration
from xmem.sweep.layouts import Layout, job_at, layouts_of
from xmem.sweep.outcome import ConfigurationOutcome
from xmem.sweep.what_if import parse_changes
from xmem.text.units import parse_bytes

MOST_CONFIGURATIONS = 1_000_000

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AXES = ("what_if", "alloc_conf", "torch", "gpu")
_COLUMNS = frozenset(
    ("configuration", "capacity_bytes", *_AXES, *(column.name for column in fields(ConfigurationOutcome)))
)
_COMMAND_KEYS = frozenset(
    ("command", "fit", "iterations", "mode", "timeout_s", "world_size", "ranks", "gpus_per_node")
)


@dataclass(frozen=True)
class Spec:
    """A validated sweep.

    Attributes:
        path: The file.
        job: A fitted model or trace, or a command to capture.
        layouts: Ways in which a command is captured; one empty layout for other jobs.
        dimensions: Dimensions that the configurations vary.
        configurations: Configurations in order: the last key of the grid changes fastest.
    """

    path: Path
    job: Path | CommandJob
    layouts: tuple[Layout, ...]
    dimensions: tuple[str, ...]
    configurations: tuple[Configuration, ...]


def read_spec(path: str | os.PathLike[str]) -> Spec:
    """Read and check a spec.

    Raises:
        ConfigError: The file cannot be read or is invalid; the message names the file and the key.
    """
    return _SweepFile(Path(path)).spec(read_toml(path))


@dataclass(frozen=True)
class _SweepFile:
    """Reads the tables of one file; errors name it."""

    path: Path

    def spec(self, content: Mapping[str, Any]) -> Spec:
        unknown = set(content) - {"job", "layouts", "grid", "zip", "list"}
        if unknown:
            self._refuse(f"unknown table [{min(unknown)}]", "use the tables job, layouts, grid, zip and list")
        layout_keys = content.get("layouts", {})
        if not isinstance(layout_keys, dict):
            self._refuse("layouts is not a table", "begin it with [layouts]")
        job = self._job(content.get("job"))
        layouts = self._layouts(layout_keys, job)
        rows = self._rows(content)
        dimensions = tuple(name for name in (rows[0] if rows else {}) if name not in _AXES)
        if isinstance(job, CommandJob) and set(dimensions) != set(job.dimensions):
            wanted = ", ".join(job.dimensions) or "no dimension"
            self._refuse(
                f"the configurations set {', '.join(dimensions) or 'no dimension'}, but fit has {wanted}",
                "set the same in both",
            )
        configurations = self._configurations(rows, dimensions, layouts)
        if isinstance(job, CommandJob):
            job = replace(job, device=_seen_by_script(configurations))
        return Spec(self.path, job, layouts, dimensions, configurations)

    def _layouts(self, table: Mapping[str, Any], job: Path | CommandJob) -> tuple[Layout, ...]:
        if table and not isinstance(job, CommandJob):
            self._refuse("[layouts] needs a command to capture", "set command in [job]")
        taken = set(table) & (
            {*_AXES, *_COLUMNS} | set(job.dimensions if isinstance(job, CommandJob) else ())
        )
        if taken:
            self._refuse(f"[layouts] {min(taken)} cannot be a key of a layout", "use another name")
        size = job.world_size if isinstance(job, CommandJob) else None
        layouts = layouts_of(table, size, self._refuse)
        if isinstance(job, CommandJob):
            self._checked("[layouts]", lambda: job_at(job, layouts[0]))
        return layouts

    def _job(self, table: object) -> Path | CommandJob:
        kinds = ("model", "trace", "command")
        if not isinstance(table, dict) or sum(kind in table for kind in kinds) != 1:
            self._refuse(
                "[job] needs exactly one source",
                "set one of model = FILE, trace = FILE, command = [ARGUMENT, ...]",
            )
        if "command" in table:
            return self._command(table)
        kind, file = next(iter(table.items()))
        if len(table) > 1:
            self._refuse(f"[job] has the keys {', '.join(table)}", f"keep only {kind} = FILE")
        if not isinstance(file, str):
            self._refuse(f"[job] {kind} = {file!r} is invalid", "use the name of a file")
        return self.path.parent / file

    def _command(self, table: Mapping[str, Any]) -> CommandJob:
        unknown = set(table) - _COMMAND_KEYS
        if unknown:
            self._refuse(
                f"unknown key {min(unknown)} in [job]", f"use one of {', '.join(sorted(_COMMAND_KEYS))}"
            )
        command = table["command"]
        if not isinstance(command, list) or not command or not all(isinstance(part, str) for part in command):
            self._refuse(
                f"[job] command = {command!r} is not a list of arguments",
                'write it like ["python", "train.py"]',
            )
        iterations, mode, timeout_s = (
            table.get(key, default)
            for key, default in (("iterations", 3), ("mode", "auto"), ("timeout_s", None))
        )
        if type(iterations) is not int or iterations < 1:
            self._refuse(f"[job] iterations = {iterations!r} is invalid", "use a whole number above 0")
        if mode not in MODES:
            self._refuse(f"[job] mode = {mode!r} is invalid", f"use one of {', '.join(MODES)}")
        if timeout_s is not None and (type(timeout_s) not in (int, float) or timeout_s <= 0):
            self._refuse(f"[job] timeout_s = {timeout_s!r} is invalid", "use a number of seconds above 0")
        points = self._fit_points(table.get("fit", {}), command)
        return CommandJob(tuple(command), points, iterations, mode, timeout_s, *self._world(table))

    def _world(self, table: Mapping[str, Any]) -> tuple[int | None, str | None, int | None]:
        size, ranks, per_node = (table.get(key) for key in ("world_size", "ranks", "gpus_per_node"))
        for key, number in (("world_size", size), ("gpus_per_node", per_node)):
            if number is not None and (type(number) is not int or number < 1):
                self._refuse(f"[job] {key} = {number!r} is invalid", "use a whole number above 0")
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks):
            ranks = ",".join(map(str, ranks))
        if ranks is not None and not isinstance(ranks, str):
            self._refuse(f"[job] ranks = {ranks!r} is invalid", 'use "auto" or a list such as [0, 127, 1023]')
        return size, ranks, per_node

    def _fit_points(self, fit: object, command: Sequence[str]) -> tuple[Mapping[str, int], ...]:
        if not isinstance(fit, dict):
            self._refuse(f"[job] fit = {fit!r} is not a table", "write it like { batch = [2, 3] }")
        for name, values in fit.items():
            key = f"[job] fit.{name} = {values!r}"
            if not isinstance(values, list) or len(values) < 2 or len(set(map(repr, values))) < len(values):
                self._refuse(f"{key} is invalid", "use two or more different values")
            for value in values:
                self._dimension_value(key, value)
        points = tuple(grid(fit))
        for point in points:
            require_dimensions(point, fit)
            substitute(command, point)
        return points

    def _rows(self, content: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the configurations as values by key: every combination of grid, zip and list."""
        tables = {name: self._axes(name, content.get(name, {})) for name in ("grid", "zip")}
        entries = content.get("list", [{}])
        if not isinstance(entries, list) or not entries or not all(isinstance(e, dict) for e in entries):
            self._refuse("list is not a list of tables", "begin each of them with [[list]]")
        listed = [self._entry(number, entry) for number, entry in enumerate(entries, 1)]
        keys = [*tables["grid"], *tables["zip"], *listed[0]]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            self._refuse(
                f"{twice[0]} appears in two tables", "set each key in only one of grid, zip and list"
            )
        lengths = {key: len(values) for key, values in tables["zip"].items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{count} of {key}" for key, count in lengths.items())
            self._refuse(f"[zip] has {counts}", "give as many values of each")
        zipped = [
            dict(zip(lengths, values, strict=True)) for values in zip(*tables["zip"].values(), strict=True)
        ]
        total = prod(map(len, (*tables["grid"].values(), zipped or [{}], listed)))
        if total > MOST_CONFIGURATIONS:
            self._refuse(f"{total:,} configurations are too many", f"use at most {MOST_CONFIGURATIONS:,}")
        crossed = [
            dict(zip(tables["grid"], values, strict=True)) for values in product(*tables["grid"].values())
        ]
        return [{**a, **b, **c} for a, b, c in product(listed, zipped or [{}], crossed)]

    def _axes(self, name: str, table: object) -> dict[str, list[Any]]:
        if not isinstance(table, dict):
            self._refuse(f"{name} is not a table", f"begin it with [{name}]")
        axes: dict[str, list[Any]] = {}
        for key, given in table.items():
            values = given if isinstance(given, list) else [given]
            if not values:
                self._refuse(f"[{name}] {key} = [] is empty", "give at least one value")
            if key == "gpu":
                values = [gpu for value in values for gpu in _expanded(value)]
            axes[key] = [self._value(f"[{name}]", key, value) for value in values]
        return axes

    def _entry(self, number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._value(f"[[list]] {number}:", key, value) for key, value in entry.items()}

    def _value(self, table: str, key: str, value: object) -> Any:
        """Return a value as configurations hold it; that of ``gpu`` is its name and the device."""
        where = f"{table} {key} = {value!r}"
        if key == "gpu":
            return self._gpu(where, value)
        if key in _AXES:
            if not isinstance(value, str):
                self._refuse(f"{where} is not a string")
            if key == "what_if":
                self._checked(table, lambda: parse_changes(value))
            return value
        if not _IDENTIFIER.fullmatch(key) or key in _COLUMNS:
            self._refuse(
                f"{table} {key} cannot be the name of a dimension",
                f"use a dimension of the job, or one of {', '.join(_AXES)}",
            )
        self._dimension_value(where, value)
        return value

    def _gpu(self, where: str, value: object) -> tuple[str, Device]:
        if type(value) is int and value > 0:
            return str(value), self._checked(where, lambda: custom_device(value))
        if not isinstance(value, str):
            self._refuse(
                f"{where} is not a GPU", 'use a name, "all", a .toml file, or a size such as "24GiB"'
            )
        if value.endswith(".toml"):
            return value, self._checked(where, lambda: find_device(str(self.path.parent / value)))
        size_bytes = _size(value)
        if size_bytes is not None:
            return value, self._checked(where, lambda: custom_device(size_bytes))
        device = self._checked(where, lambda: find_device(value))
        return device.slug, device

    def _dimension_value(self, where: str, value: object) -> None:
        if type(value) is not int or not 0 < value < 1 << 31:
            self._refuse(f"{where} is invalid", "use whole numbers above 0")

    def _configurations(
        self, rows: Sequence[Mapping[str, Any]], dimensions: Sequence[str], layouts: Sequence[Layout]
    ) -> tuple[Configuration, ...]:
        configurations = []
        if len(layouts) * len(rows) > MOST_CONFIGURATIONS:
            self._refuse(
                f"{len(layouts) * len(rows):,} configurations are too many",
                f"use at most {MOST_CONFIGURATIONS:,}",
            )
        for number, (layout, row) in enumerate(product(layouts, rows)):
            if row.keys() - set(_AXES) != set(dimensions):
                self._refuse(
                    "the entries of [[list]] have different keys", "set the same keys in every entry"
                )
            gpu, device = row.get("gpu", (None, None))
            configurations.append(
                Configuration(
                    number=number,
                    point={name: row[name] for name in dimensions},
                    what_if=row.get("what_if", ""),
                    alloc_conf=row.get("alloc_conf"),
                    torch_version=row.get("torch"),
                    gpu=gpu,
                    device=device,
                    layout=layout,
                )
            )
        return tuple(configurations)

    def _checked(self, where: str, make: Callable[[], Any]) -> Any:
        """Return the result of a function; its errors also name the file and the key."""
        try:
            return make()
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {where}: {error.message}", error.hint) from None

    def _refuse(self, problem: str, hint: str = "") -> NoReturn:
        raise ConfigError(f"{self.path}: {problem}", hint)


def _seen_by_script(configurations: Sequence[Configuration]) -> Device | None:
    """Return the GPU that a command sees: the first whose architecture is known, else the first."""
    named = [each.device for each in configurations if each.device is not None]
    known = (device for device in named if device.compute_capability is not None)
    return next(known, named[0] if named else None)


def _expanded(gpu: object) -> list[object]:
    return [device.slug for device in devices()] if gpu == "all" else [gpu]


def _size(text: str) -> int | None:
    """Parse a capacity with its unit; None for other text, such as the name of a GPU."""
    if not re.fullmatch(r"\s*[\d.]+\s*[KMGTP]?i?B\s*", text, re.IGNORECASE):
        return None
    return parse_bytes(text)
