"""Makes a process see the phantom GPU: a folder with its machine and ledger, and a few variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from xmem.devices.gpus import Device
from xmem.phantom.installation import PRELOADED, library_folder
from xmem.phantom.ledger import create_ledger
from xmem.phantom.machine import write_machine


def prepare(
    folder: Path,
    devices: Sequence[Device],
    *,
    driver_version: int = 13000,
    limit_bytes: int | None = None,
    cudnn_library: Path | None = None,
    most_waiting: int = 0,
) -> None:
    """Write the machine and an empty ledger.

    Args:
        folder: An existing folder, private to one run.
        devices: The GPUs of the machine, in order.
        driver_version: Version as ``cudaDriverGetVersion`` returns it.
        limit_bytes: Memory that each GPU hands out before it is out of memory; its size by default.
        cudnn_library: See :func:`xmem.phantom.machine.write_machine`.
        most_waiting: See there.
    """
    write_machine(
        folder / "machine",
        devices,
        driver_version=driver_version,
        limit_bytes=limit_bytes,
        cudnn_library=cudnn_library,
        most_waiting=most_waiting,
    )
    create_ledger(folder / "ledger")


def phantom_environment(
    folder: Path, base: Mapping[str, str], compile_cache: Path | None = None
) -> dict[str, str]:
    """Return the environment of a process that should see a phantom machine.

    Args:
        folder: What `prepare` wrote the machine into.
        base: The environment to add to.
        compile_cache: Folder for what Inductor and Triton compile; one below ``folder`` by default.
    """
    libraries = library_folder()
    environment = dict(base)
    environment["XMEM_PHANTOM"] = str(folder)
    preloaded = [str(libraries / name) for name in PRELOADED]
    environment["LD_PRELOAD"] = _joined(preloaded, environment.get("LD_PRELOAD"))
    # For programs that look for the driver's file, not for its name.
    environment["LD_LIBRARY_PATH"] = _joined([str(libraries)], environment.get("LD_LIBRARY_PATH"))
    environment["TRITON_LIBCUDA_PATH"] = str(libraries)
    # Tuning measures nothing here: its results must not be taken from, or left in, the user's caches.
    compiled = (compile_cache or folder).absolute()
    environment["TRITON_CACHE_DIR"] = str(compiled / "triton")
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(compiled / "inductor")
    return environment


def _joined(ours: Sequence[str], theirs: str | None) -> str:
    return os.pathsep.join([*ours, *([theirs] if theirs else [])])
