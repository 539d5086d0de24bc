"""How a process comes to see the phantom GPU: a folder with its machine and ledger, and a few variables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import xmem
from xmem.devices import Device
from xmem.errors import CaptureError, ConfigError
from xmem.phantom.ledger import create_ledger
from xmem.phantom.machine import write_machine

_PRELOADED = ("libxmem_phantom.so", "libcuda.so.1", "libnvidia-ml.so.1")
# The helper that asks cuDNN, and the names and fidelities of all functions.
_OPENED_BY_THEM = ("xmem_phantom_cudnn", "phantom_functions.tsv")


def library_folder() -> Path:
    """Where the phantom's libraries were installed; ``XMEM_PHANTOM_LIBRARIES`` names another build of them.

    Raises:
        ConfigError: This is no Linux, or the variable names a folder that lacks a file of the phantom.
        CaptureError: A file of the phantom is missing in this installation.
    """
    if sys.platform != "linux":
        raise ConfigError(
            f"the phantom GPU on {sys.platform}",
            "Linux; use --mode real here, which runs the script on the CPU",
        )
    if chosen := os.environ.get("XMEM_PHANTOM_LIBRARIES"):
        if missing := _missing(Path(chosen)):
            raise ConfigError(
                f"XMEM_PHANTOM_LIBRARIES={chosen}",
                f"a folder with a whole build of the phantom GPU; {missing[0]} is not there",
            )
        return Path(chosen)
    folders = [Path(entry) / "phantom" for entry in xmem.__path__]
    for folder in folders:
        if not _missing(folder):
            return folder
    # The package's sources and what was built of them may lie apart: the folder that has most is meant.
    nearest = min(folders, key=lambda folder: len(_missing(folder)))
    raise CaptureError(
        f"the phantom GPU cannot be used: {', '.join(_missing(nearest))} is missing in {nearest}; install "
        "again (pip install --force-reinstall xmem-fast; in a clone of the project pip install -e .), or use "
        "--mode real, which runs the script on the CPU"
    )


def _missing(folder: Path) -> list[str]:
    return [name for name in (*_PRELOADED, *_OPENED_BY_THEM) if not (folder / name).is_file()]


def prepare(
    folder: Path,
    devices: Sequence[Device],
    *,
    driver_version: int = 13000,
    limit_bytes: int | None = None,
    cudnn_library: Path | None = None,
) -> None:
    """Write the machine and an empty ledger.

    Args:
        folder: An existing folder, private to one run.
        devices: The GPUs of the machine, in order.
        driver_version: As ``cudaDriverGetVersion`` gives it.
        limit_bytes: What each GPU gives out before it is out of memory; its size by default.
        cudnn_library: See :func:`xmem.phantom.machine.write_machine`.
    """
    write_machine(
        folder / "machine",
        devices,
        driver_version=driver_version,
        limit_bytes=limit_bytes,
        cudnn_library=cudnn_library,
    )
    create_ledger(folder / "ledger")


def phantom_environment(folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is to see the machine in ``folder``, made from that of another."""
    libraries = library_folder()
    environment = dict(base)
    environment["XMEM_PHANTOM"] = str(folder)
    preloaded = [str(libraries / name) for name in _PRELOADED]
    environment["LD_PRELOAD"] = _joined(preloaded, environment.get("LD_PRELOAD"))
    # Programs that look for the driver's file, not for its name.
    environment["LD_LIBRARY_PATH"] = _joined([str(libraries)], environment.get("LD_LIBRARY_PATH"))
    environment["TRITON_LIBCUDA_PATH"] = str(libraries)
    # Tuning measures nothing here: its results must not be taken from, or left in, the user's caches.
    environment["TRITON_CACHE_DIR"] = str(folder / "triton")
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    return environment


def _joined(ours: Sequence[str], theirs: str | None) -> str:
    return os.pathsep.join([*ours, *([theirs] if theirs else [])])
