"""The folder in which the phantom's libraries are installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import xmem
from xmem.errors import CaptureError, ConfigError

PRELOADED = ("libxmem_phantom.so", "libcuda.so.1", "libnvidia-ml.so.1")
"""Libraries that a process loads before all others."""

# The helper that asks cuDNN, what it gives to cuDNN, and the names and fidelities of all functions.
_OPENED_BY_THEM = (
    "xmem_phantom_cudnn",
    "cudnn_planning/libcublasLt.so.12",
    "cudnn_planning/libcublasLt.so.13",
    "phantom_functions.tsv",
)


def library_folder() -> Path:
    """Return where the phantom's libraries were installed; ``XMEM_PHANTOM_LIBRARIES`` names another build of
    them.

    Raises:
        ConfigError: This is not Linux, or the variable names a folder that lacks a file of the phantom.
        CaptureError: A file of the phantom is missing in this installation.
    """
    if sys.platform != "linux":
        raise ConfigError(
            f"the phantom GPU runs on Linux only, not on {sys.platform}",
            "use --mode fake or real here, or the Dockerfile of docs/phantom.md",
        )
    if chosen := os.environ.get("XMEM_PHANTOM_LIBRARIES"):
        if missing := _missing(Path(chosen)):
            raise ConfigError(
                f"XMEM_PHANTOM_LIBRARIES={chosen} has no {missing[0]}",
                "name a folder with a whole build of the phantom GPU",
            )
        return Path(chosen)
    folders = [Path(entry) / "phantom" for entry in xmem.__path__]
    for folder in folders:
        if not _missing(folder):
            return folder
    # The package's sources and what was built from them may lie apart: take the folder that has most.
    nearest = min(folders, key=lambda folder: len(_missing(folder)))
    raise CaptureError(
        f"the phantom GPU cannot be used: {', '.join(_missing(nearest))} is missing in {nearest}; install "
        "again (pip install --force-reinstall xmem-fast; in a clone of the project pip install -e .), or use "
        "--mode real, which runs the script on the CPU"
    )


def _missing(folder: Path) -> list[str]:
    return [name for name in (*PRELOADED, *_OPENED_BY_THEM) if not (folder / name).is_file()]
