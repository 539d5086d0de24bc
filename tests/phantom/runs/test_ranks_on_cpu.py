"""A rank of a job in mode fake needs what it needs on the phantom GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.one_rank import EXAMPLES
from tests.phantom.conftest import PYTHONS

from xmem.capture import DescribedGpu, PhantomMachine, World, capture
from xmem.devices.gpus import find_device
from xmem.estimation.pipeline import analyze

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

NEWEST = str(PYTHONS[0]) if PYTHONS else ""
H100 = find_device("h100")
nightly = pytest.mark.nightly


def answer(mode: Any, script: str, folder: Path, world: World) -> dict[str, int]:
    name, *arguments = script.split()
    path = folder / f"{mode}.json"
    capture(
        [NEWEST, str(EXAMPLES / name), *arguments],
        path,
        rank=world.ranks[-1],  # of a pipeline, the one that needs most
        mode=mode,
        machine=PhantomMachine(device=H100),
        gpu=DescribedGpu.of(H100),
        world=world,
        stdout=2,
        timeout_s=300,
    )
    found = analyze(path, gpu="h100").estimate
    return {
        "allocated": found.peak_allocated_bytes,
        "reserved": found.peak_reserved_bytes,
        "nccl": sum(part.bytes for part in found.card if part.name == "nccl"),
        "need": found.device_peak_bytes,
    }


@pytest.mark.parametrize(
    ("size", "ranks", "script"),
    [
        (8, (0,), "data_parallel.py --style fsdp2"),
        pytest.param(8, (0,), "data_parallel.py --style ddp", marks=nightly),
        pytest.param(8, (3,), "data_parallel.py --style fsdp1", marks=nightly),
        pytest.param(16, (9,), "data_parallel.py --style hsdp", marks=nightly),
        pytest.param(8, (0,), "tensor_parallel.py --sequence", marks=nightly),
        pytest.param(8, (7,), "tensor_parallel.py", marks=nightly),
        pytest.param(8, (0,), "expert_parallel.py", marks=nightly),
        pytest.param(2, (0, 1), "pipeline.py --schedule 1f1b", marks=nightly),
    ],
)
def test_a_rank_on_the_cpu_needs_what_it_needs_on_the_phantom(size, ranks, script, tmp_path) -> None:
    world = World(size, ranks, min(size, 8))
    made, on_gpu = (answer(mode, script, tmp_path, world) for mode in ("fake", "phantom"))
    # Less by small tables of pointers, and by what one kernel of attention takes for a moment.
    assert made["allocated"] == pytest.approx(
        on_gpu["allocated"], rel=0.005 if "pipeline" in script else 1e-4
    )
    assert {**made, "allocated": 0} == {**on_gpu, "allocated": 0}
    assert on_gpu["nccl"] > 0


@nightly
def test_context_parallelism_lacks_the_work_areas_of_its_kernel(tmp_path) -> None:
    world = World(8, (0,), 8)
    made, on_gpu = (answer(mode, "context_parallel.py", tmp_path, world) for mode in ("fake", "phantom"))
    assert made["nccl"] == on_gpu["nccl"]
    assert made["reserved"] == pytest.approx(on_gpu["reserved"], rel=0.03)
