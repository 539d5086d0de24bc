"""The process that has imported everything and touched no GPU; every run is forked from it.

    python -m xmem_measure.zygote SOCKET_FD [--dry-run] [PACKAGE ...]

Importing torch, torchvision and transformers takes longer than most runs, and CUDA cannot be used on both
sides of a fork: so they are imported once, here, where CUDA is never used.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import platform
import signal
import socket
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from xmem_measure.wire import Wire

# Modules that models would otherwise import again in every run.
_MODELS = (
    "gpt2",
    "gpt_neo",
    "opt",
    "t5",
    "gpt_neox",
    "qwen2",
    "qwen3",
    "llama",
    "gemma2",
    "bert",
    "distilbert",
    "clip",
)
_PR_SET_PDEATHSIG = 1


def main() -> None:
    dry_run = "--dry-run" in sys.argv[2:]
    packages = [argument for argument in sys.argv[2:] if argument != "--dry-run"]
    end_with_parent()
    visit = socket.socket(fileno=int(sys.argv[1]))
    imported = _imported(packages)
    # What stands now will never be garbage: collections in the children need not look at it.
    gc.collect()
    gc.freeze()
    Wire(visit).send(**imported)
    while True:
        spec, descriptors = _receive(visit)
        if spec is None:
            return
        connection, log = descriptors
        if "reap" in spec:
            Wire(visit).send(status=os.waitstatus_to_exitcode(os.waitpid(spec["reap"], 0)[1]))
            continue
        pid = os.fork()
        if pid == 0:
            visit.close()
            _become_child(spec, connection, log, dry_run)
        os.close(connection)
        os.close(log)
        Wire(visit).send(pid=pid)


def end_with_parent() -> None:
    """Nobody is left behind when the visit is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _receive(visit: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    message, descriptors, _, _ = socket.recv_fds(visit, 1 << 20, 2)
    if not message:
        return None, []
    return json.loads(message), descriptors or [-1, -1]


def _become_child(spec: dict[str, Any], connection: int, log: int, dry_run: bool) -> None:
    status = 1
    try:
        end_with_parent()
        # Ctrl-C goes to the whole group; what becomes of a run is the visit's decision.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from xmem_measure.child import run

        run(spec, Wire(socket.socket(fileno=connection)), dry_run=dry_run)
        status = 0
    finally:
        sys.stderr.flush()
        # Neither Python's nor CUDA's end has anything to say about the run.
        os._exit(status)


def _imported(packages: list[str]) -> dict[str, Any]:
    """Import everything that is needed and there; what is not, and what is, for the plan."""
    import torch

    import xmem_measure.child  # noqa: F401 - once for all children
    from workloads.vision_operators import define_vision_operators

    missing = {}
    define_vision_operators()
    for name in packages:
        try:
            importlib.import_module(name)
        # A broken installation can fail in any way, and must not take the other parts with it.
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    if "transformers" in packages and "transformers" not in missing:
        for name in _MODELS:
            try:
                importlib.import_module(f"transformers.models.{name}.modeling_{name}")
            except Exception as error:
                missing[f"transformers.{name}"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return {
        "missing": missing,
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "",
            "cudnn": str(_cudnn_version()),
            "torchvision": _version("torchvision"),
            "transformers": _version("transformers"),
            "python": platform.python_version(),
        },
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cudnn_version() -> int:
    """As ``cudnnGetVersion`` gives it: asking torch would ask the GPU."""
    import torch

    if torch.version.cuda is None:
        return 0
    libraries = [Path(torch.__file__).parent / "lib", Path(torch.__file__).parents[1] / "nvidia/cudnn/lib"]
    for candidate in (*(folder / "libcudnn.so.9" for folder in libraries), "libcudnn.so.9"):
        try:
            return int(ctypes.CDLL(str(candidate)).cudnnGetVersion())
        except (OSError, AttributeError):
            continue
    return 0


if __name__ == "__main__":
    main()
