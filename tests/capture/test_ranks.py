"""Captures on the CPU of one rank of a job: what its collectives return, and what it asks for."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.one_rank import EXAMPLES

from xmem.capture import DescribedGpu, World, capture
from xmem.devices.gpus import find_device
from xmem.errors import CaptureError, ConfigError
from xmem.estimation.pipeline import analyze, run_stages
from xmem.estimation.question import ask

from .conftest import needs_torch

pytestmark = needs_torch
nightly = pytest.mark.nightly

TRAIN = """
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(1, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
START = """
import os, sys, json, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "nccl")
def show(**values):
    print("shown", json.dumps(values), file=sys.stderr)
"""
H100 = DescribedGpu.of(find_device("h100"))


def traced(command: list[str], folder: Path, world: World, **options: Any) -> Any:
    result = capture(
        [sys.executable, *command],
        folder / "trace.json",
        mode="fake",
        world=world,
        gpu=H100,
        stdout=2,
        timeout_s=240,
        **options,
    )
    return json.loads(result.path.read_text())["xmem"]


def run(folder: Path, script: str, world: World, *arguments: str, **options: Any) -> Any:
    path = folder / "train.py"
    path.write_text(START + textwrap.dedent(script) + TRAIN)
    return traced([str(path), *arguments], folder, world, **options)


def shown(printed: str) -> dict[str, Any]:
    lines = [line.removeprefix("shown ") for line in printed.splitlines() if line.startswith("shown ")]
    return {name: value for line in lines for name, value in json.loads(line).items()}


TALKS = """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    rank, two = dist.get_rank(), torch.full((2,), 2.0, device="cuda")
    show(size=dist.get_world_size(), rank=rank, gpus=torch.cuda.device_count(), backend=dist.get_backend(),
         device=str(two.device))
    work = dist.all_reduce(two, async_op=True)
    work.wait()
    show(done=work.is_completed(), future=work.get_future().value()[0].tolist(), reduced=two.tolist())
    lists = [torch.empty(1, dtype=torch.int64, device="cuda") for _ in range(16)]
    dist.all_gather(lists, torch.tensor([rank], device="cuda"))
    show(gathered=[int(each) for each in lists])
    part = torch.empty(1, device="cuda")
    dist.reduce_scatter_tensor(part, torch.arange(16.0, device="cuda"))
    show(part=part.item())
    group = dist.new_group(range(4, 16, 4))
    number = torch.tensor([7], device="cuda")
    dist.broadcast(number, 4, group=group)
    dist.barrier(group)
    everyone = [None] * 16
    dist.all_gather_object(everyone, f"from {rank}")
    sent, received = torch.ones(4, device="cuda"), torch.empty(4, device="cuda")
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, 5), dist.P2POp(dist.irecv, received, 5)])
    [work.wait() for work in works]
    with dist._coalescing_manager(device=torch.device("cuda", torch.cuda.current_device())):
        dist.all_reduce(sent)
        dist.all_reduce(received)
    show(number=number.item(), everyone=everyone[3], group=dist.get_backend(group))
    mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("dp", "tp"))
    tensor = DTensor.from_local(torch.ones(2, 3, device="cuda"), mesh, [Shard(0), Replicate()])
    show(whole=list(tensor.full_tensor().shape))
    on_host = torch.tensor([3.0])
    if sys.argv[1] != "nccl":
        dist.all_reduce(on_host)
    show(host=on_host.item())
"""


@pytest.mark.parametrize(
    ("backend", "on_host"), [("nccl", 3.0), pytest.param("cpu:gloo,cuda:nccl", 48.0, marks=nightly)]
)
def test_peers_that_do_not_run_hold_what_this_rank_holds(backend, on_host, tmp_path, capfd) -> None:
    notes = run(tmp_path, TALKS, World(16, (4,), 8), backend)
    assert shown(capfd.readouterr().err) == {
        "size": 16,
        "rank": 4,
        "gpus": 8,
        "backend": backend,
        "device": "cuda:4",
        "done": True,
        "future": [32.0, 32.0],
        "reduced": [32.0, 32.0],
        "gathered": [4] * 16,
        "part": 64.0,
        "number": 7,
        "everyone": "from 4",
        "group": backend,
        "whole": [4, 3],
        "host": on_host,
    }
    assert notes["world"] == {"size": 16, "ranks": [4], "pipeline": [], "ends": notes["world"]["ends"]}
    assert any("only rank 4 ran, out of 16" in text for text in notes["assumptions"])


ASKS = """
    near, far = dist.new_group(range(8)), dist.new_group(range(0, 32, 8))
    number, out = torch.ones(32, device="cuda"), torch.ones(32 * 32, device="cuda")
    dist.all_gather_into_tensor(out[: 8 * 32], number, group=near)
    dist.broadcast(number, 0, group=near)
    dist.all_reduce(number, group=near)
    dist.all_to_all_single(number.clone(), number, group=near)
    dist.all_gather_into_tensor(out[: 4 * 32], number, group=far)
    dist.send(number, 8)
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        other = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.current_stream() == beside
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    used = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    used.record_stream(beside)
    other.record_stream(beside)
"""


def test_buffers_of_nccl_and_streams_are_in_the_answer(tmp_path) -> None:
    """MiB as in ``test_nccl_takes_memory_by_what_a_group_does_and_where_its_ranks_are`` of the phantom."""
    run(tmp_path, ASKS, World(32, (0,), 8))
    found = analyze(tmp_path / "trace.json", gpu="h100").estimate
    (nccl,) = [part.bytes >> 20 for part in found.card if part.name == "nccl"]
    near = 24 * 12 + 24 * 12 + 16 * 2 * 8 + 7 * 32 * 12
    assert nccl == near + 4 * 20 + 4 * 2 * 2
    assert found.interval is not None
    assert "half of NCCL's buffers" in found.interval.basis
    other = analyze(tmp_path / "trace.json", gpu="rtx-3060").estimate
    assert not [part for part in other.card if part.name == "nccl"]  # without NVLink, most are on the host

    workload = run_stages(tmp_path / "trace.json", ask(gpu="h100")).workload
    own, used = ((workload.size_bytes == size << 20) for size in (3, 5))
    assert np.count_nonzero(workload.stream) == 1
    assert workload.stream[own] > 0
    assert workload.waits[used].all()
    assert workload.waits.sum() == 1


@pytest.mark.parametrize("style", ["ddp", pytest.param("fsdp2", marks=nightly)])
def test_a_rank_trains_in_one_process(style, tmp_path) -> None:
    command = [str(EXAMPLES / "data_parallel.py"), "--style", style, "--layers", "1", "--width", "128"]
    notes = traced(command, tmp_path, World(4, (0,), 4))
    assert notes["iterations"] == 3
    assert not [text for text in notes["assumptions"] if "bug in xMem" in text]


@nightly
def test_ranks_that_were_named_run_one_after_the_other(tmp_path, capfd) -> None:
    script = """
    extra = torch.empty((1 + dist.get_rank()) << 22, dtype=torch.uint8, device="cuda")
    """
    notes = run(tmp_path, script, World(4, (0, 2), 4))
    assert notes["world"]["ranks"] == [2]
    assert "rank 0 4.00 MiB, rank 2 12.00 MiB" in capfd.readouterr().err


@nightly
def test_a_rank_runs_with_the_peers_whose_objects_it_needs(tmp_path, capfd) -> None:
    command = [str(EXAMPLES / "pipeline.py"), "--width", "128"]
    notes = traced(command, tmp_path, World(2, (0,), 2))
    assert notes["world"]["ranks"] == [0, 1]
    assert "running again with ranks 0, 1" in capfd.readouterr().err


def test_what_is_not_followed_is_refused(tmp_path) -> None:
    script = """
    import torch.distributed._symmetric_memory as symmetric
    symmetric.empty(8, device="cuda")
    """
    with pytest.raises(CaptureError, match=r"symmetric memory.*phantom-env"):
        run(tmp_path, script, World(2, (0,), 2))


def test_mode_real_runs_no_ranks(tmp_path) -> None:
    with pytest.raises(ConfigError, match="not possible in mode real"):
        capture(["python"], tmp_path / "trace.json", mode="real", world=World(2, (0,), 2))
