"""Holders of the bytes at the peak, by everything known about them: the data of flame graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xmem.errors import ConfigError
from xmem.estimation.estimate import SMALLER_PATHS, Estimate, PathBytes
from xmem.estimation.holders import NO_LINE, OUTSIDE_OF_MODULES, OUTSIDE_OF_OPERATORS

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis


def peak_paths(source: Analysis | Estimate) -> tuple[PathBytes, ...]:
    """Return the bytes at the peak of allocated memory by holder, most first.

    Raises:
        ConfigError: The estimate is of an earlier version, which has no joint holders.
    """
    estimate = source if isinstance(source, Estimate) else source.estimate
    if not estimate.breakdown.paths:
        raise ConfigError(
            "the estimate of an earlier version has no breakdown.paths",
            "write it again with this version, or pass the trace",
        )
    return estimate.breakdown.paths


def stack_of(path: PathBytes) -> list[str]:
    """Return the holder as a stack, outermost first: category, parts of the module's path, operator, line."""
    if path.module == SMALLER_PATHS:
        return [path.category, SMALLER_PATHS]
    module = path.module.split(".") if path.module else [OUTSIDE_OF_MODULES]
    return [path.category, *module, path.operator or OUTSIDE_OF_OPERATORS, path.source_line or NO_LINE]
