"""Who holds the bytes at the peak, by everything known of the holders at once: what flame graphs sum over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xmem.errors import ConfigError
from xmem.estimate_result import SMALLER_PATHS, Estimate, PathBytes
from xmem.evidence import paths_of, taken_bytes
from xmem.holders import NO_LINE, OUTSIDE_OF_MODULES, OUTSIDE_OF_OPERATORS

if TYPE_CHECKING:
    from xmem.pipeline import Analysis


def peak_paths(source: Analysis | Estimate, *, show_packages: bool = False) -> tuple[PathBytes, ...]:
    """The bytes at the peak of allocated memory by holder, most first.

    Args:
        source: An estimate, or all that it rests on.
        show_packages: Name the lines of installed packages in place of the user's, which takes the trace.

    Raises:
        ConfigError: An estimate without what is asked for.
    """
    if not isinstance(source, Estimate):
        return _with_packages(source) if show_packages else source.estimate.breakdown.paths
    if show_packages:
        raise ConfigError(
            "--show-packages of an estimate", "the trace: an estimate has the user's lines only"
        )
    if not source.breakdown.paths:
        raise ConfigError("an estimate without breakdown.paths", "one written by this version, or the trace")
    return source.breakdown.paths


def stack_of(path: PathBytes) -> list[str]:
    """The holder as a stack, outermost first: category, parts of the module's path, operator, line."""
    if path.module == SMALLER_PATHS:
        return [path.category, SMALLER_PATHS]
    module = path.module.split(".") if path.module else [OUTSIDE_OF_MODULES]
    return [path.category, *module, path.operator or OUTSIDE_OF_OPERATORS, path.source_line or NO_LINE]


def _with_packages(analysis: Analysis) -> tuple[PathBytes, ...]:
    stages, replay = analysis.stages, analysis.replay
    holders = analysis.unfolded_holders
    rows = holders.alive_at(replay.peak_allocated.request)
    taken = taken_bytes(stages.workload, stages.requests, replay)[rows]
    return paths_of(holders, rows, taken, replay.placement.size_bytes[rows] - taken)
