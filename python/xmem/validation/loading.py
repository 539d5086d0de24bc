"""Reading and checking of the results of ``bench/gpu``: a wrong line is an error that names it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast, get_args

import numpy as np

from xmem.errors import ConfigError, TraceError
from xmem.files.documents import parse_json
from xmem.validation.columns import Int64
from xmem.validation.measurements import (
    Convolution,
    DeviceFacts,
    DeviceMemory,
    IterationUsage,
    Launches,
    LeastMemory,
    LibraryAnswers,
    MeasuredWorkspaces,
    Measurement,
    Network,
    OperatorRequests,
    OperatorTable,
    Outcome,
    ProgramPeak,
    RecurrentNetworks,
    Sample,
    SampleTable,
    TrainingPeak,
)

DEFAULT_FOLDER = Path("bench/gpu/results")
_SCHEMA = 1


def load_measurements(folder: str | os.PathLike[str] = DEFAULT_FOLDER) -> tuple[Measurement, ...]:
    """Read all measurements below a folder.

    A run that was tried again counts once, with its last outcome. Runs that failed are plain ``Measurement``
    objects.

    Args:
        folder: Folder of all results, or of one GPU.

    Returns:
        Measurements by file, then in the order in which they were made.

    Raises:
        ConfigError: There is no such folder.
        TraceError: A line does not follow ``bench/gpu/SCHEMA.md``; the error names file and line.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(
            f"the folder {root} does not exist", "name a folder with results of bench/gpu/measure.py"
        )
    found: dict[str, Measurement] = {}
    for path in sorted(root.rglob("*.jsonl")):
        for measurement in _measurements(path):
            found[measurement.key] = measurement
    return tuple(found.values())


def _measurements(path: Path) -> Iterator[Measurement]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot be read ({error}); get the file again", path) from None
    for number, line in enumerate(lines, 1):
        yield _Record(path, number, line).measurement()


class _Record:
    """One line."""

    def __init__(self, path: Path, number: int, line: str) -> None:
        self._path = path
        self._number = number
        try:
            self._fields: Any = parse_json(line)
        except ValueError as error:
            self._refuse(f"not JSON ({error})")
        if not isinstance(self._fields, dict):
            self._refuse("not a JSON object")

    def measurement(self) -> Measurement:
        """Return the line as the type of its part.

        Raises:
            TraceError: The line does not follow the schema.
        """
        if self._fields.get("schema") != _SCHEMA:
            self._refuse(f"the schema is {self._fields.get('schema')!r}, but this xMem reads {_SCHEMA}")
        try:
            common = self._common()
            part = common["part"]
            if part not in _PARTS:
                self._refuse(f"part must be one of {', '.join(_PARTS)}, not {part!r}")
            outcome = common["outcome"]
            holds_result = outcome == "done" or (outcome == "out_of_memory" and "history" in self._fields)
            return _PARTS[part](common, self._fields) if holds_result else Measurement(**common)
        except KeyError as error:
            self._refuse(f"the key {error.args[0]!r} is missing")
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            self._refuse(str(error))

    def _common(self) -> dict[str, Any]:
        fields = self._fields
        if fields["outcome"] not in get_args(Outcome):
            self._refuse(f"outcome must be one of {', '.join(get_args(Outcome))}, not {fields['outcome']!r}")
        return {
            "where": f"{self._path}:{self._number}",
            "key": _text(fields["key"]),
            "part": _text(fields["part"]),
            "config": _mapping(fields["config"]),
            "environment": _mapping(fields["environment"]),
            "driver": _text(fields["driver"]),
            "started": _text(fields["started"]),
            "seconds": float(fields["seconds"]),
            "outcome": fields["outcome"],
            "error": _text(fields.get("error", "")),
            "device_memory": _device_memory(fields.get("device_memory")),
        }

    def _refuse(self, what: str) -> NoReturn:
        raise TraceError(
            f"line {self._number}: {what}; see bench/gpu/SCHEMA.md, and remove the line if it is damaged",
            self._path,
        ) from None


_Fields = Mapping[str, Any]


def _device(common: dict[str, Any], fields: _Fields) -> Measurement:
    return DeviceFacts(
        **common,
        properties=_mapping(fields.get("properties", {})),
        attributes=_mapping(fields.get("attributes", {})),
        versions=_mapping(fields.get("versions", {})),
        cudnn_device=fields.get("cudnn_device"),
    )


def _training(common: dict[str, Any], fields: _Fields) -> Measurement:
    iterations = _mapping(fields["iterations"])
    return TrainingPeak(
        **common,
        **_recorded(fields),
        iterations=IterationUsage(
            seconds=np.array(iterations["seconds"], np.float64),
            max_allocated_bytes=_numbers(iterations["max_allocated_bytes"]),
            max_reserved_bytes=_numbers(iterations["max_reserved_bytes"]),
            allocated_bytes=_numbers(iterations["allocated_bytes"]),
            reserved_bytes=_numbers(iterations["reserved_bytes"]),
        ),
        parameters=_count(fields["parameters"]),
    )


def _program(common: dict[str, Any], fields: _Fields) -> Measurement:
    return ProgramPeak(
        **common,
        **_recorded(fields),
        allocated_bytes=_count(fields["allocated_bytes"]),
        reserved_bytes=_count(fields["reserved_bytes"]),
    )


def _recorded(fields: _Fields) -> dict[str, Any]:
    history = _mapping(fields["history"])
    for name in ("complete", "actions", "events", "subjects"):
        history[name]
    return {
        "peak_allocated_bytes": _count(fields["peak_allocated_bytes"]),
        "peak_reserved_bytes": _count(fields["peak_reserved_bytes"]),
        "packed_history": history,
    }


def _least_memory(common: dict[str, Any], fields: _Fields) -> Measurement:
    trials = fields["trials"]
    return LeastMemory(
        **common,
        peak_reserved_bytes=_count(fields["peak_reserved_bytes"]),
        least_bytes=_count(fields["least_bytes"]),
        too_little_bytes=_count(fields["too_little_bytes"]),
        trial_cap_bytes=_numbers([trial["cap_bytes"] for trial in trials]),
        trial_finished=np.array([trial["outcome"] == "done" for trial in trials], np.bool_),
    )


def _operators(common: dict[str, Any], fields: _Fields) -> Measurement:
    return OperatorTable(
        **common,
        flags=_mapping(fields["flags"]),
        operators=tuple(
            OperatorRequests(
                name=_text(row["name"]),
                inputs=tuple(row["inputs"]),
                requests=_numbers(row["requests"]),
                calls=_count(row["calls"]),
            )
            for row in fields["operators"]
        ),
    )


def _convolutions(common: dict[str, Any], fields: _Fields) -> Measurement:
    calls = ("forward", "data_gradient", "filter_gradient")
    return MeasuredWorkspaces(
        **common,
        flags=_mapping(fields["flags"]),
        convolutions=tuple(
            Convolution(
                shape={name: value for name, value in row.items() if name not in calls},
                **{call: None if row[call] == "out_of_memory" else _numbers(row[call]) for call in calls},
            )
            for row in fields["convolutions"]
        ),
    )


def _samples(common: dict[str, Any], fields: _Fields) -> Measurement:
    def requests(value: Any) -> Int64 | str | None:
        return value if value is None or isinstance(value, str) else _numbers(value)

    return SampleTable(
        **common,
        flags=_mapping(fields["flags"]),
        samples=tuple(
            Sample(
                operator=_text(row["name"]),
                number=_count(row["sample"]),
                inputs=_text(row["inputs"]),
                forward=cast(Int64 | str, requests(row["forward"])),
                backward=requests(row.get("backward")),
            )
            for row in fields["samples"]
        ),
    )


def _libraries(common: dict[str, Any], fields: _Fields) -> Measurement:
    if "networks" in fields:
        calls = ("forward", "backward")
        return RecurrentNetworks(
            **common,
            flags=_mapping(fields["flags"]),
            networks=tuple(
                Network(
                    settings={name: value for name, value in row.items() if name not in calls},
                    **{call: _numbers(row[call]) for call in calls},
                )
                for row in fields["networks"]
            ),
        )
    return LibraryAnswers(
        **common,
        packed_calls={_text(table["function"]): _mapping(table["calls"]) for table in fields["tables"]},
    )


def _launches(common: dict[str, Any], fields: _Fields) -> Measurement:
    return Launches(
        **common,
        kernels=tuple(fields["kernels"]),
        operators=tuple(fields.get("operators", ())),
        packed_launches=_mapping(fields["launches"]),
    )


_PARTS: Mapping[str, Callable[[dict[str, Any], _Fields], Measurement]] = {
    "device": _device,
    "training": _training,
    "least_memory": _least_memory,
    "operators": _operators,
    "convolutions": _convolutions,
    "occupancy": _launches,
    "programs": _program,
    "samples": _samples,
    "libraries": _libraries,
    "nsight": _launches,
}


def _device_memory(fields: Any) -> DeviceMemory | None:
    if fields is None:
        return None
    return DeviceMemory(
        source=_text(fields["source"]),
        before_bytes=_count(fields["before_bytes"]),
        context_bytes=int(fields.get("context_bytes", -1)),
        end_bytes=int(fields.get("end_bytes", -1)),
        peak_bytes=_count(fields["peak_bytes"]),
        samples=_count(fields["samples"]),
        seconds=float(fields["seconds"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} must be text")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} must be an object")
    return cast(Mapping[str, Any], value)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} must be a whole number of at least 0")
    return value


def _numbers(values: Sequence[Any]) -> Int64:
    if not all(isinstance(value, int) for value in values):
        raise ValueError(f"{values!r} must be whole numbers")
    column = np.array(values, np.int64)
    column.flags.writeable = False
    return column
