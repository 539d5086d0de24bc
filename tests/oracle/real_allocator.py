"""Requests through the caching allocator of a torch that is installed in another Python."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.devices.gpus import custom_device
from xmem.phantom.environment import phantom_environment, prepare
from xmem.simulation.replay import Requests

DRIVER = Path(__file__).with_name("drive_torch.py")
CONTEXT_BYTES = 64 << 20


@dataclass(frozen=True)
class Setting:
    """What the allocator is told, and the device below it.

    Attributes:
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF``.
        memory_fraction: Of ``torch.cuda.set_per_process_memory_fraction``; None where it is not called.
        capacity_bytes: Total memory of the device.
        tensors: Whether blocks are tensors on real streams, so that they can be used on others; else they are
            raw memory.
        pools: Whether the program uses private pools.
    """

    alloc_conf: str
    memory_fraction: float | None
    capacity_bytes: int
    tensors: bool
    pools: bool = False


@dataclass(frozen=True)
class RealRun:
    """What torch said.

    Attributes:
        torch_version: Such as ``2.12.0+cu130``.
        address: int64 a block, where it was placed first and last; -1 where it ran out of memory.
        counters: int64, a row a request, a column for each name.
        names: Those of the simulator's counters that this torch has.
        stream_handle: int64 a stream of the requests.
        snapshots: By request, segments with their blocks.
    """

    torch_version: str
    address: NDArray[np.int64]
    counters: NDArray[np.int64]
    names: tuple[str, ...]
    stream_handle: NDArray[np.int64]
    snapshots: dict[int, list[Any]]


@cache
def version_of(python: str) -> str:
    """The release of torch that a Python has."""
    code = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


class TorchError(Exception):
    """The process with torch ended with an error; the text is its standard error."""


def run_torch(
    python: str, folder: Path, setting: Setting, requests: Requests, look_after: Sequence[int] = ()
) -> RealRun:
    """Issue requests, whose streams are numbers from 0, and take a snapshot after some of them.

    Raises:
        TorchError: The process did not end well.
    """
    streams = int(requests.stream.max(initial=0)) + 1
    columns = {
        "kind": requests.kind,
        "block": requests.block,
        "size_bytes": requests.size_bytes,
        "stream": requests.stream,
    }
    for name, values in columns.items():
        (folder / name).write_bytes(np.ascontiguousarray(values, np.int64).tobytes())
    plan = {
        "memory_fraction": setting.memory_fraction,
        "tensors": setting.tensors,
        "streams": streams,
        "counters": _core.counter_names(),
        "look_after": list(look_after),
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    device = replace(
        custom_device(1 << 40), total_memory_bytes=setting.capacity_bytes, context_bytes=CONTEXT_BYTES
    )
    prepare(folder, [device])
    environment = phantom_environment(folder, os.environ)
    environment |= {"PYTORCH_CUDA_ALLOC_CONF": setting.alloc_conf, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [python, str(DRIVER), str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        raise TorchError(f"exit status {ran.returncode}\n{ran.stderr[-4000:]}")
    answer = json.loads((folder / "answer.json").read_text())
    names = tuple(answer["counters"])
    return RealRun(
        torch_version=answer["torch"],
        address=np.fromfile(folder / "address", np.int64),
        counters=np.fromfile(folder / "counters", np.int64).reshape(-1, len(names)),
        names=names,
        stream_handle=np.array(answer["streams"], np.int64),
        snapshots={int(request): segments for request, segments in answer["snapshots"].items()},
    )
