"""Which cuDNN planned the convolutions and attention of a phantom run.

The choice is that of ``csrc/phantom/libraries/cudnn_planner.hpp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, cast


@dataclass(frozen=True)
class CudnnPlanner:
    """Who chose the engines, and with them the workspaces.

    Attributes:
        bundled_version: Of the cuDNN in the environment, as ``cudnnGetVersion`` gives it: 90100.
        planned_by: ``bundled``: that library, so the plans are those of the card. ``named``: another version,
            so they may differ. ``none``: no library; the plans need no workspace.
        version: Of the library that planned, 0 if there was none.
        reason: Why it was not the bundled one, or none at all.
    """

    bundled_version: int
    planned_by: Literal["bundled", "named", "none"]
    version: int
    reason: str


def installed_library(cuda_major: int) -> Path | None:
    """The cuDNN of the wheel ``nvidia-cudnn-cu12`` or ``-cu13`` beside xmem (extra ``cudnn``), if there is
    one."""
    try:
        files = metadata.files(f"nvidia-cudnn-cu{cuda_major}") or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.name == "libcudnn.so.9"), None)


def read_planner(folder: Path) -> CudnnPlanner | None:
    """What a run in ``folder`` wrote down; None if it never used cuDNN's graphs."""
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
