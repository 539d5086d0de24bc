"""Runs of one rank of a job, and what it asked the allocator for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from xmem.capture import PhantomMachine, World, capture
from xmem.devices.gpus import find_device

EXAMPLES = Path(__file__).parents[1] / "examples" / "parallel"


def traced(
    command: list[str],
    folder: Path,
    rank: int | None,
    world: World | None,
    gpus: int = 2,
    imbalance: float = 1.0,
) -> Any:
    """Return what the phantom noted of a run, the traced rank first.

    Args:
        command: A Python of a CUDA build of torch, and its arguments.
        folder: Made for the trace.
        rank: The rank to trace, None for the one that needs most.
        world: The world that the script sees, None where every rank runs.
        gpus: GPUs of the machine.
        imbalance: The tokens of the experts of the rank, over their share.
    """
    folder.mkdir(exist_ok=True)
    result = capture(
        command,
        folder / "trace.json",
        rank=rank,
        mode="phantom",
        machine=PhantomMachine(device=find_device("h100"), count=gpus, imbalance=imbalance),
        world=world,
        env=dict(os.environ),
        stdout=2,
        timeout_s=300,
    )
    return json.loads(result.path.read_text())["xmem"]


def requests(notes: Any) -> list[tuple[Any, ...]]:
    """Return the requests of each device, without what depends on time and on addresses."""
    return [
        (columns["device"], columns["size_bytes"], columns["stream"])
        for columns in notes["phantom"]["requests"]
    ]


def real_and_alone(
    python: str, command: list[str], folder: Path, size: int, rank: int, running: tuple[int, ...]
) -> tuple[Any, Any]:
    """Return the requests of a rank among real processes, and in those that stand for ranks.

    Args:
        python: Of a CUDA build of torch.
        command: The script and its arguments.
        folder: For the traces.
        size: Number of ranks.
        rank: The one to compare.
        running: The ranks that run where not all do.
    """
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    real = traced([*launcher, *command], folder / "real", rank, None, gpus=size)
    alone = traced([python, *command], folder / "alone", rank, World(size, running, size))
    return requests(real), requests(alone)
