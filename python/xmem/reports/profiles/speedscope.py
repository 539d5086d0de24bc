"""Bytes at the peak for speedscope (https://www.speedscope.app): one sample per holder, weighted by bytes.

The file format is described at https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from xmem.estimation.estimate import SMALLER_PATHS, Estimate, PathBytes
from xmem.estimation.holders import NO_LINE
from xmem.reports.profiles.peak_paths import peak_paths, stack_of
from xmem.text.source_lines import file_and_number

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"

_Frame = tuple[str, str, int]
"""Name, file and line; an empty file and line 0 are left out."""


def write_speedscope(source: Analysis | Estimate, file: IO[bytes]) -> int:
    """Write the bytes at the peak of allocated memory, by holder and by source line.

    Args:
        source: An estimate, or an analysis with the data behind it, which also names functions.
        file: File to write to.

    Returns:
        The number of holders.

    Raises:
        ConfigError: The estimate lacks the requested data.
    """
    paths = peak_paths(source)
    notes = {} if isinstance(source, Estimate) else source.stages.trace.notes.lines
    frames: dict[_Frame, int] = {}
    profiles = [
        _profile("by category, module, operator and line", map(_holder_frames, paths), paths, frames),
        _profile("by file, function and line", [_line_frames(path, notes) for path in paths], paths, frames),
    ]
    document = {
        "$schema": _SCHEMA,
        "name": "bytes at the peak of allocated memory",
        "exporter": "xmem-fast",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(*frame) for frame in frames]},
        "profiles": profiles,
    }
    file.write(json.dumps(document, separators=(",", ":")).encode() + b"\n")
    return len(paths)


def _holder_frames(path: PathBytes) -> list[_Frame]:
    *holder, line = stack_of(path)
    return [*((name, "", 0) for name in holder), _line_frame(line)]


def _line_frames(path: PathBytes, notes: Mapping[str, Mapping[str, str]]) -> list[_Frame]:
    if path.source_line is None:
        missing = SMALLER_PATHS if path.module == SMALLER_PATHS else NO_LINE
        return [(missing, "", 0), (path.category, "", 0)]
    name, _ = file_and_number(path.source_line)
    function = notes.get(path.source_line, {}).get("function", "")
    return [
        (name, name, 0),
        *([(function, name, 0)] if function else []),
        _line_frame(path.source_line),
        (path.category, "", 0),
    ]


def _line_frame(line: str) -> _Frame:
    name, number = file_and_number(line)
    return (line, name, number) if number else (line, "", 0)


def _profile(
    name: str, stacks: Iterable[Sequence[_Frame]], paths: Sequence[PathBytes], frames: dict[_Frame, int]
) -> dict[str, Any]:
    weights = [path.bytes + path.slack_bytes for path in paths]
    return {
        "type": "sampled",
        "name": name,
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in stacks],
        "weights": weights,
    }


def _frame(name: str, file: str, line: int) -> dict[str, Any]:
    return {"name": name} | ({"file": file} if file else {}) | ({"line": line} if line else {})
