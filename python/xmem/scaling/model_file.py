"""Fitted models as files: zip archives of the traces that a model is fitted from, and their points.

The traces are the model: reading and fitting them again takes well under a second, and a newer version of
this package then applies its improvements. `model.json` holds

    format      1
    dimensions  names, in order
    samples     a list of {"trace": name in the archive, "point": {dimension: value}}
    command     the command that was captured, with {dimension} for its arguments, secrets masked; null when
                unknown
"""

from __future__ import annotations

import json
import os
import reprlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from xmem.errors import TraceError
from xmem.estimation.observation import observe
from xmem.files.decoding import decode
from xmem.files.documents import parse_json
from xmem.files.model_archive import INDEX, errors_of_damage
from xmem.files.sources import unpacks_too_far
from xmem.files.writing import writing
from xmem.records import dataclass
from xmem.scaling.dimensions import Point, require_point
from xmem.scaling.model import Sample, ScalingModel, fit
from xmem.trace.trace import Trace, read_trace

_FORMAT = 1


def write_model(
    path: str | os.PathLike[str],
    traces: Sequence[tuple[Point, Path]],
    command: Sequence[str] | None = None,
) -> None:
    """Pack traces and their points; the file appears only when it is complete.

    Raises:
        TraceError: A trace cannot be read, or the file cannot be written.
    """
    try:
        with writing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            samples = []
            for number, (point, trace) in enumerate(traces):
                name = f"traces/{number}-{trace.name}"
                archive.write(trace, name)
                samples.append({"trace": name, "point": dict(point)})
            dimensions = list(traces[0][0]) if traces else []
            from xmem.capture.child.xmem_child.masking import masked_arguments  # with all of the capture

            index = {
                "format": _FORMAT,
                "dimensions": dimensions,
                "samples": samples,
                "command": None if command is None else masked_arguments(command),
            }
            archive.writestr(INDEX, json.dumps(index, indent=1))
    except OSError as error:
        raise TraceError(f"cannot be written: {error.strerror}; check the path", os.fspath(path)) from None


def read_model(path: str | os.PathLike[str]) -> ScalingModel:
    """Read the traces of a model and fit them.

    Raises:
        TraceError: The file is not a model, is damaged, would unpack to far more than it holds, or has a
            newer format.
        ConfigError: No model can be fitted to the traces.
    """
    name = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as archive:
            index = _index(archive, name)
            traces = [(dict(entry.point), _trace(archive, entry.trace, name)) for entry in index.samples]
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}; check the path", name) from None
    except errors_of_damage() as error:
        raise TraceError(f"not a fitted model, or damaged ({error}); fit it again", name) from None
    return fit([Sample(point, observe(trace)) for point, trace in traces])


@dataclass(frozen=True)
class _SampleEntry:
    trace: str
    point: Mapping[str, int]


@dataclass(frozen=True)
class _Index:
    format: int
    dimensions: tuple[str, ...]
    samples: tuple[_SampleEntry, ...]
    command: tuple[str, ...] | None = None


_MOST_INDEX_BYTES = 16 << 20
_MOST_SAMPLES = 1000


def _index(archive: zipfile.ZipFile, path: str) -> _Index:
    """Read and check the index.

    Raises:
        ValueError: It is damaged, or the archive is not one that ``write_model`` wrote.
    """
    with archive.open(INDEX) as file:
        text = file.read(_MOST_INDEX_BYTES + 1)
    if len(text) > _MOST_INDEX_BYTES:
        raise ValueError(f"{INDEX} is larger than {_MOST_INDEX_BYTES >> 20} MiB")
    noted = parse_json(text)
    if isinstance(noted, dict) and noted.get("format", _FORMAT) != _FORMAT:
        found = reprlib.repr(noted["format"])
        raise TraceError(f"the model has format {found}, not {_FORMAT}; fit it again with this version", path)
    index: _Index = decode(_Index, noted, skip_unknown=True)
    traces = [entry.trace for entry in index.samples]
    if len(traces) > _MOST_SAMPLES or len(set(traces)) < len(traces):
        raise ValueError(f"{len(traces)} samples are too many, or share a trace")
    for entry in index.samples:
        require_point(entry.point)
        if set(entry.point) != set(index.dimensions):
            raise ValueError(f"the point of {entry.trace} does not have the dimensions of the model")
    unpacked_bytes = sum(archive.getinfo(trace).file_size for trace in traces)
    packed_bytes = sum(archive.getinfo(trace).compress_size for trace in traces)
    if unpacks_too_far(packed_bytes, unpacked_bytes):
        raise ValueError(f"{packed_bytes:,} bytes would unpack to {unpacked_bytes:,}")
    return index


def _trace(archive: zipfile.ZipFile, member: str, path: str) -> Trace:
    with archive.open(member) as file:
        return Trace(read_trace(cast(BinaryIO, file)).core, f"{path}:{member}")
