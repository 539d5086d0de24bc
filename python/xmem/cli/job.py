"""The job that a command is about: a trace, or a fitted model and a point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xmem.cli.reading import reading
from xmem.errors import ConfigError, TraceError
from xmem.estimation.estimate_file import is_estimate_file, read_estimate
from xmem.files.model_archive import is_model_file

if TYPE_CHECKING:
    from xmem.estimation.estimate import Estimate
    from xmem.estimation.observation import Observation


def observed(source: str, at: str | None) -> Observation:
    """Return what a trace says about its run, or a fitted model about the run at a point.

    Raises:
        TraceError: The file cannot be used.
        ConfigError: A model without a point, a point without a model, or one that the model does not have.
    """
    from xmem.estimation.observation import observe

    if is_model_file(source):
        from xmem.scaling import parse_point, read_model

        model = read_model(source)
        if at is None:
            example = ",".join(f"{name}={value}" for name, value in model.base_sample.point.items())
            raise ConfigError(
                f"{source} is a fitted model, which needs --at",
                f"pass its dimensions, such as --at {example}",
            )
        return model.at(parse_point(at))
    if at is not None:
        raise ConfigError(
            f"--at {at} needs a fitted model, and {source} is not one", "make one with 'xmem-fast fit'"
        )
    if is_estimate_file(source):
        raise TraceError(
            f"this is an estimate, not a trace; show it with `xmem-fast report {source}`", source
        )
    with reading(source) as progress:
        return observe(source, progress=progress)


def estimate_in(source: str) -> Estimate | None:
    """Return the estimate in a file that ``estimate -o`` wrote; None if the file holds something else.

    Raises:
        TraceError: It is an estimate of another version, or a damaged one.
    """
    return read_estimate(source) if is_estimate_file(source) else None
