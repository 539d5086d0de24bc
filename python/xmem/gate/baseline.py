"""Baselines: estimates that are kept in a repository, and later ones held to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from xmem.errors import TraceError
from xmem.estimate_file import read_estimate, write_estimate
from xmem.estimate_result import Estimate
from xmem.files import naming


@dataclass(frozen=True)
class Baseline:
    """What a job took when somebody last agreed to it.

    Attributes:
        path: As the user named it.
        estimate: Of then.
    """

    path: str
    estimate: Estimate


def read_baseline(path: Path, *, writer: str = "xmem-fast check --update-baseline") -> Baseline:
    """Read an estimate as ``estimate -o`` and ``check --update-baseline`` write it.

    Args:
        path: Of the file.
        writer: The command that writes a missing one, for the message.

    Raises:
        TraceError: There is none, or it is damaged.
    """
    if not path.exists():
        raise TraceError(f"there is no baseline yet; write it with `{writer}`", path)
    return Baseline(str(path), read_estimate(path))


def write_baseline(path: Path, estimate: Estimate) -> None:
    """Write what lasts of an estimate, so that the file changes only when the answer does.

    No two runs of a script have the same times: the curve and what else is told by the clock is left out.

    Raises:
        ConfigError: It cannot be written.
    """
    lasting = replace(
        estimate,
        peak=replace(estimate.peak, time_ns=-1),
        curve=None,
        largest_blocks=(),
        trace=replace(estimate.trace, bytes=-1),
        timings_s={},
    )
    with naming(f"the baseline {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_estimate(path, lasting)
