"""The job that a command is about: a trace, or a fitted model and a point."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from xmem.cli.reading import reading
from xmem.errors import ConfigError

if TYPE_CHECKING:
    from xmem.estimate_result import Estimate
    from xmem.observation import Observation

_BEGIN_OF_ESTIMATE = re.compile(rb'\s*\{\s*"schema_version"')
_BEGIN_BYTES = 4096


def observed(source: str, at: str | None) -> Observation:
    """What a trace says of its run, or a fitted model of the run at a point.

    Raises:
        TraceError: The file cannot be used.
        ConfigError: A model without a point, a point without a model, or one that the model does not have.
    """
    from xmem.observation import observe
    from xmem.scaling import is_model_file, parse_point, read_model

    if is_model_file(source):
        model = read_model(source)
        if at is None:
            example = ",".join(f"{name}={value}" for name, value in model.base_sample.point.items())
            raise ConfigError(f"the model {source} without --at", f"--at with its dimensions: {example}")
        return model.at(parse_point(at))
    if at is not None:
        raise ConfigError(f"--at {at} of {source}", "a fitted model: xmem-fast fit makes one")
    with reading(source) as progress:
        return observe(source, progress=progress)


def estimate_in(source: str) -> Estimate | None:
    """The estimate that a file holds as ``estimate -o`` wrote it; None where it holds something else.

    Raises:
        TraceError: It is an estimate of another version, or a damaged one.
    """
    import json
    from pathlib import Path

    from xmem.errors import TraceError
    from xmem.estimate_result import Estimate

    path = Path(source)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if not _BEGIN_OF_ESTIMATE.match(file.read(_BEGIN_BYTES)):
            return None
        file.seek(0)
        try:
            data = json.load(file)
        except ValueError as error:
            raise TraceError(f"this estimate is damaged ({error}); write it again", source) from error
    return Estimate.from_json(data)
