"""Baselines: estimates kept in a repository, with which later ones are compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from xmem.errors import TraceError
from xmem.estimation.estimate import Estimate
from xmem.estimation.estimate_file import read_estimate, write_estimate
from xmem.files.writing import naming
from xmem.records import dataclass


@dataclass(frozen=True)
class Baseline:
    """Estimate of a job when somebody last accepted it.

    Attributes:
        path: Path as the user gave it.
        estimate: The estimate at that time.
    """

    path: str
    estimate: Estimate


def read_baseline(path: Path, *, writer: str = "xmem-fast check --update-baseline") -> Baseline:
    """Read an estimate as ``estimate -o`` and ``check --update-baseline`` write it.

    Args:
        path: Path of the file.
        writer: Command that writes a missing file, for the message.

    Raises:
        TraceError: The file is missing or damaged.
    """
    if not path.exists():
        raise TraceError(f"there is no baseline yet; write it with `{writer}`", path)
    return Baseline(str(path), read_estimate(path))


def write_baseline(path: Path, estimate: Estimate) -> None:
    """Write the stable parts of an estimate, so that the file changes only when the answer does.

    No two runs of a script have the same times, so the curve and other clock-dependent values are left out.

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
