"""Fitted models as files: zip archives of the traces that a model is fitted from, and their points.

The traces are the model: reading and fitting them again takes well under a second, and a newer version of
this package then applies its improvements. `model.json` holds

    format      1
    dimensions  names, in order
    samples     a list of {"trace": name in the archive, "point": {dimension: value}}
    command     the command that was captured, with {dimension} for its arguments; null when unknown
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xmem.errors import TraceError
from xmem.estimation.observation import observe
from xmem.scaling.dimensions import Point
from xmem.scaling.model import Sample, ScalingModel, fit
from xmem.trace.trace import Trace, read_trace

_FORMAT = 1
_INDEX = "model.json"


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Return whether the file is a fitted model, judging by its content."""
    if not Path(path).is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return _INDEX in archive.namelist()


def write_model(
    path: str | os.PathLike[str],
    traces: Sequence[tuple[Point, Path]],
    command: Sequence[str] | None = None,
) -> None:
    """Pack traces and their points; the file appears only when it is complete.

    Raises:
        TraceError: A trace cannot be read, or the file cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            samples = []
            for number, (point, trace) in enumerate(traces):
                name = f"traces/{number}-{trace.name}"
                archive.write(trace, name)
                samples.append({"trace": name, "point": dict(point)})
            dimensions = list(traces[0][0]) if traces else []
            index = {
                "format": _FORMAT,
                "dimensions": dimensions,
                "samples": samples,
                "command": None if command is None else list(command),
            }
            archive.writestr(_INDEX, json.dumps(index, indent=1))
        partial.replace(target)
    except OSError as error:
        raise TraceError(f"cannot be written: {error.strerror}; check the path", str(target)) from None
    finally:
        partial.unlink(missing_ok=True)


def read_model(path: str | os.PathLike[str]) -> ScalingModel:
    """Read the traces of a model and fit them.

    Raises:
        TraceError: The file is not a model, is damaged, or has a newer format.
        ConfigError: No model can be fitted to the traces.
    """
    name = os.fspath(path)
    try:
        with zipfile.ZipFile(path) as archive:
            index = json.loads(archive.read(_INDEX))
            if index["format"] != _FORMAT:
                raise TraceError(
                    f"the model has format {index['format']}, not {_FORMAT}; fit it again with this version",
                    name,
                )
            samples = [_sample(archive, entry, name) for entry in index["samples"]]
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}; check the path", name) from None
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise TraceError(f"not a fitted model, or damaged ({error}); fit it again", name) from None
    return fit(samples)


def _sample(archive: zipfile.ZipFile, entry: dict[str, Any], path: str) -> Sample:
    point = {str(name): int(value) for name, value in entry["point"].items()}
    trace = read_trace(archive.read(entry["trace"]))
    return Sample(point, observe(Trace(trace.core, f"{path}:{entry['trace']}")))
