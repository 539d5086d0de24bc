"""The cuDNN that planned the convolutions and attention of a phantom run.

The choice is that of ``csrc/phantom/libraries/cudnn/planning/planner.hpp``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

from xmem.records import dataclass


@dataclass(frozen=True)
class CudnnPlanner:
    """The library that chose the engines, and with them the workspaces.

    Attributes:
        bundled_version: Version of the cuDNN in the environment, as ``cudnnGetVersion`` returns it: 90100.
        planned_by: ``bundled``: that library, so the plans are those of the card, or close to them
            (up to 9.7). ``named``: the one that was asked for. ``none``: no library, and no
            workspaces.
        version: Version of the library that planned, 0 if there was none.
        reason: Why it was not the one asked for, or none at all.
    """

    bundled_version: int
    planned_by: Literal["bundled", "named", "none"]
    version: int
    reason: str


def read_planner(folder: Path) -> CudnnPlanner | None:
    """Read what a run in ``folder`` wrote down; None if it never used cuDNN's graphs."""
    path = folder / "cudnn"
    if not path.exists():
        return None
    values = dict(line.split(" ", 1) for line in path.read_text().splitlines())
    return CudnnPlanner(
        bundled_version=int(values["bundled_version"]),
        planned_by=cast(Literal["bundled", "named", "none"], values["planned_by"]),
        version=int(values["version"]),
        reason=values["reason"],
    )
