"""One process that stands for a rank asks the allocator for what that rank asks for beside real peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.conftest import PYTHONS, needs_torch

import one_rank
import xmem
from nightly import most_nightly
from one_rank import EXAMPLES
from xmem.capture import PhantomMachine, World, capture
from xmem.devices.gpus import find_device
from xmem.errors import CaptureError

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

NEWEST = str(PYTHONS[0]) if PYTHONS else ""
nightly = pytest.mark.nightly


def traced(command: list[str], folder: Path, rank: int | None, world: World | None, **options: Any) -> Any:
    return one_rank.traced([NEWEST, *command], folder, rank, world, **options)


@pytest.mark.parametrize(
    ("size", "rank", "running", "script"),
    [
        pytest.param(2, 1, (1,), "data_parallel.py --style ddp", marks=nightly),
        pytest.param(2, 1, (1,), "data_parallel.py --style fsdp2 --offload", marks=nightly),
        (2, 1, (1,), "tensor_parallel.py --sequence"),
        pytest.param(4, 3, (3,), "data_parallel.py --style hsdp --bind", marks=nightly),
        pytest.param(2, 0, (0, 1), "pipeline.py --schedule 1f1b", marks=nightly),
        pytest.param(2, 0, (0,), "data_parallel.py --style fsdp1", marks=nightly),
        pytest.param(2, 1, (1,), "data_parallel.py --style fsdp1 --bfloat16", marks=nightly),
        pytest.param(2, 1, (1,), "data_parallel.py --style fsdp1 --offload", marks=nightly),
        pytest.param(2, 0, (0,), "data_parallel.py --style fsdp2", marks=nightly),
        pytest.param(2, 1, (1,), "data_parallel.py --style fsdp2 --checkpoint --bfloat16", marks=nightly),
        pytest.param(4, 3, (3,), "data_parallel.py --style hsdp", marks=nightly),
        pytest.param(4, 0, (0,), "tensor_parallel.py", marks=nightly),
        pytest.param(2, 1, (0, 1), "pipeline.py --schedule gpipe", marks=nightly),
        pytest.param(2, 1, (0, 1), "pipeline.py --schedule interleaved", marks=nightly),
        pytest.param(2, 1, (0, 1), "pipeline.py --schedule zbv", marks=nightly),
        pytest.param(2, 1, (1,), "context_parallel.py", marks=nightly),
        pytest.param(2, 0, (0,), "expert_parallel.py", marks=nightly),
    ],
)
def test_a_rank_alone_asks_for_what_it_asks_for_among_real_peers(
    size, rank, running, script, tmp_path
) -> None:
    name, *arguments = script.split()
    command = [str(EXAMPLES / name), *arguments]
    real, alone = one_rank.real_and_alone(NEWEST, command, tmp_path, size, rank, running)
    assert len(real[0][1]) > 500
    assert alone == real


LEAVES = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
if dist.get_rank() == 1:
    os._exit(0)
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(1, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


@nightly
def test_a_rank_that_says_nothing_is_named(tmp_path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    notes = traced([*launcher, str(script)], tmp_path / "run", 0, None)
    assert "1 of 2 ranks did not report their memory" in notes["assumptions"]


TALKS = """
import datetime, os, sys, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
rank, size = dist.get_rank(), dist.get_world_size()
everyone = [None] * size
dist.all_gather_object(everyone, f"from {rank}")
told = [f"of {rank}"]
dist.broadcast_object_list(told, src=3)
own = [f"kept by {rank}"]
dist.broadcast_object_list(own, src=5)
halves = [dist.new_group(range(0, size // 2)), dist.new_group(range(size // 2, size))]
half = halves[rank // (size // 2)]
on_gpu, on_host = torch.ones(1, device="cuda"), torch.full((1,), float(rank))
dist.all_reduce(on_gpu, group=half)
gloo = dist.new_group(backend="gloo")
dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=100), gloo)
dist.all_reduce(on_host, group=gloo, op=dist.ReduceOp.MAX)
dist.monitored_barrier(gloo)
dist.barrier()
print([size, everyone[0], everyone[3], everyone[4] == f"from {rank}", told, own, on_gpu.item(), on_host.item()])
sys.stdout.flush()
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(1, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("launcher", most_nightly([False, True]))
def test_ranks_that_run_talk_and_the_others_hold_what_this_one_holds(launcher, tmp_path, capfd) -> None:
    script = tmp_path / "talks.py"
    script.write_text(TALKS)
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "4", "--nnodes", "2"] if launcher else []
    notes = traced([*launch, str(script)], tmp_path / "run", None, World(8, (0, 3), 4))
    printed = capfd.readouterr().err
    said = "[8, 'from 0', 'from 3', True, ['of 3'], ['kept by {}'], 4.0, {}]"
    assert said.format(0, "3.0") in printed
    assert said.format(3, "3.0") in printed
    assert sorted(row["rank"] for row in notes["phantom"]["ranks"]) == [0, 3]
    assert any("ranks 0 and 3 ran, out of 8" in text for text in notes["assumptions"])
    assert any("rank 5 does not run" in text for text in notes["assumptions"])


SAVES = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
layer = fully_shard(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.AdamW(layer.parameters())
for step in range(4):
    layer(torch.ones(1, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 0:
        weights, moments = get_state_dict(layer, optimizer)
        dcp.save({"weights": weights, "moments": moments}, checkpoint_id=sys.argv[1])
        dcp.load({"weights": weights, "moments": moments}, checkpoint_id=sys.argv[1])
        set_state_dict(layer, optimizer, model_state_dict=weights, optim_state_dict=moments)
"""


@pytest.mark.nightly
def test_a_distributed_checkpoint_is_saved_and_loaded(tmp_path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    notes = traced([str(script), str(tmp_path / "saved")], tmp_path / "run", None, World(8, (3,), 8))
    assert notes["iterations"] == 3
    assert notes["phantom"]["world"]["ranks"] == [0, 3]


BUFFERS = """
import os, json, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
def beside():
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()
near, far = dist.new_group(range(8)), dist.new_group(range(0, 32, 8))
number, out = torch.ones(32, device="cuda"), torch.ones(32 * 32, device="cuda")
taken = {}
for name, call in {
    "near ring": lambda: dist.all_gather_into_tensor(out[: 8 * 32], number, group=near),
    "near again": lambda: dist.broadcast(number, 0, group=near),
    "near tree": lambda: dist.all_reduce(number, group=near),
    "near peers": lambda: dist.all_to_all_single(number.clone(), number, group=near),
    "far ring": lambda: dist.all_gather_into_tensor(out[: 4 * 32], number, group=far),
    "far peers": lambda: dist.all_to_all_single(number.clone(), number, group=far),
    "all ring": lambda: dist.all_gather_into_tensor(out, number),
    "all peers": lambda: dist.all_to_all_single(number.clone(), number),
    "send near": lambda: dist.send(number, 1),
    "send far": lambda: dist.send(number, 8),
}.items():
    number.clone()
    before = beside()
    call()
    taken[name] = (beside() - before) >> 20
print("taken", json.dumps(taken))
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(1, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_nccl_takes_memory_by_what_a_group_does_and_where_its_ranks_are(tmp_path, capfd) -> None:
    """MiB by hand: 12 for a connection within a server, 10 for each direction to another; Hopper has 24 channels
    within a server, 2 rings for each rank on it between servers, and at least 4."""
    script = tmp_path / "buffers.py"
    script.write_text(BUFFERS)
    traced([str(script)], tmp_path / "run", None, World(32, (0,), 8))
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("taken ")]
    assert json.loads(line.removeprefix("taken ")) == {
        "near ring": 24 * 12,
        "near again": 0,
        "near tree": 24 * 12 + 16 * 2 * 8,  # with buffers of the switch: channels, directions, ranks
        "near peers": 7 * 32 * 12,
        "far ring": 4 * 20,
        "far peers": 4 * 2 * 2,
        "all ring": 14 * 12 + 2 * 20,
        "all peers": 7 * 2 * 12 + 16 * 2 * 2,
        "send near": 32 * 12,
        "send far": 4 * 2 * 2,
    }


def test_nccl_takes_on_another_gpu_what_it_takes_there(tmp_path) -> None:
    script = tmp_path / "buffers.py"
    script.write_text(BUFFERS)
    traces = {gpu: tmp_path / f"{gpu}.json" for gpu in ("h100", "rtx-3060")}
    for gpu, trace in traces.items():
        machine = PhantomMachine(device=find_device(gpu))
        command = [NEWEST, str(script)]
        capture(command, trace, mode="phantom", machine=machine, world=World(32, (0,), 8), stdout=2)
    nccl = {
        (seen, asked): sum(part.bytes for part in xmem.estimate(trace, gpu=asked).card if part.name == "nccl")
        for seen, trace in traces.items()
        for asked in traces
    }
    assert nccl["h100", "h100"] == nccl["rtx-3060", "h100"] > 3 << 30
    assert nccl["h100", "rtx-3060"] == nccl["rtx-3060", "rtx-3060"] == 0


ROUTES = """
import os, json, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
layer = torch.nn.Linear(16, 16).cuda()
scores = layer(torch.ones(1000, 16, device="cuda"))
chosen = scores.topk(2, dim=-1).indices
counts = torch.bincount(chosen.flatten(), minlength=16)
by_rank, by_map = torch.empty_like(counts), torch.empty(4 * 16, dtype=torch.int64, device="cuda")
dist.all_to_all_single(by_rank, counts)
routes = torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True)
dist.all_gather_into_tensor(by_map, routes.sum(0).to(torch.int64))
whole = torch.empty(4 * 1000, 16, dtype=torch.bool, device="cuda")
dist.all_gather_into_tensor(whole, routes)
own = whole[:, 4:8].contiguous()
known = torch.full((4,), 7, device="cuda")
dist.all_to_all_single(torch.empty_like(known), known)
print("routes", json.dumps([counts.tolist(), by_rank.view(4, 4).sum(1).tolist(),
    by_map.view(4, 16)[:, 4:8].sum(1).tolist(), known.tolist(),
    [own.sum(0).tolist(), torch.arange(4000, device="cuda").expand(4, -1).masked_select(own.T).numel()]]))
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(1, 16, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.nightly
def test_experts_of_a_rank_get_more_than_their_share(tmp_path, capfd) -> None:
    """1,000 tokens with 2 choices each on 4 ranks: 500 from each rank, and 1.5 times 2,000 in all."""
    script = tmp_path / "routes.py"
    script.write_text(ROUTES)

    def told(imbalance: float) -> list[Any]:
        folder = tmp_path / str(imbalance)
        notes = traced([str(script)], folder, None, World(4, (1,), 4), imbalance=imbalance)
        said = [text for text in notes["assumptions"] if "--imbalance" in text]
        assert said == (
            []
            if imbalance == 1
            else [f"experts of this rank get {imbalance:g} times their share of tokens (--imbalance)"]
        )
        (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("routes ")]
        found: list[Any] = json.loads(line.removeprefix("routes "))
        return found

    even = [[125] * 16, [500] * 4, [500] * 4, [7] * 4, [[500] * 4, 2000]]
    assert told(1.0) == even
    sent, received, gathered, known, _ = told(1.5)
    assert (sent, known) == (even[0], even[3])
    assert received == gathered
    assert received[1] == 500
    assert abs(sum(received) - 3000) < 16


def test_an_imbalance_without_routes_says_that_it_changed_nothing(tmp_path) -> None:
    command = [str(EXAMPLES / "data_parallel.py"), "--style", "ddp"]
    notes = traced(command, tmp_path / "run", None, World(2, (0,), 2), imbalance=2.0)
    assert any("--imbalance 2 changed nothing" in text for text in notes["assumptions"])


def test_a_world_of_thousands_starts_at_once(tmp_path) -> None:
    command = [str(EXAMPLES / "data_parallel.py"), "--style", "hsdp", "--replicas", "512"]
    notes = traced(command, tmp_path / "run", None, World(4096, (4095,), 8))
    assert notes["iterations"] == 3


@nightly
def test_a_chosen_world_runs_the_stages_that_differ(tmp_path) -> None:
    command = [str(EXAMPLES / "pipeline.py"), "--pipeline", "2"]
    notes = traced(command, tmp_path / "run", None, World(4, (0, 3), 4, is_chosen=True))
    world = notes["phantom"]["world"]
    assert (world["size"], world["ranks"]) == (4, [0, 1, 2, 3])
    assert world["pipeline"] in ([0, 1], [2, 3])
    places = {rank["rank"]: rank["place"] for rank in notes["phantom"]["ranks"]}
    assert [place for place in places[3] if place["name"] == "pp"] == [{"name": "pp", "index": 1, "size": 2}]


def test_a_rank_runs_with_the_peers_whose_objects_it_needs(tmp_path, capfd) -> None:
    notes = traced([str(EXAMPLES / "pipeline.py")], tmp_path / "run", None, World(2, (0,), 2))
    assert notes["phantom"]["ranks"][0]["rank"] == 0
    assert notes["phantom"]["world"]["ranks"] == [0, 1]
    assert "running again with ranks 0, 1" in capfd.readouterr().err


@nightly
def test_a_rank_that_fails_with_all_that_it_needs_says_why(tmp_path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(TALKS.replace("halves = [", "raise ValueError('on its own')\nhalves = ["))
    with pytest.raises(CaptureError, match="on its own"):
        traced([str(script)], tmp_path / "run", None, World(8, (3,), 4))


SYMMETRIC = """
import os, torch, torch.distributed as dist, torch.distributed._symmetric_memory as symm
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
name = dist.new_group(range(8)).group_name
symm.enable_symm_mem_for_group(name)
gpu = torch.device("cuda", torch.cuda.current_device())
first = torch.ones(512, 1024, device=gpu, dtype=torch.bfloat16)
def beside():
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()
before = beside()
shared = symm.empty(8 << 20, dtype=torch.uint8, device=gpu)
handle = symm.rendezvous(shared, name)
taken = (beside() - before) >> 20
buffers = [handle.get_buffer(rank, (16,), torch.float32) for rank in range(8)]
places = len({buffer.data_ptr() for buffer in buffers})
handle.barrier()
weight = torch.ones(1024, 2048, device=gpu, dtype=torch.bfloat16)
gathered, products = torch.ops.symm_mem.fused_all_gather_matmul(first, [weight], 0, name)
scattered = torch.ops.symm_mem.fused_matmul_reduce_scatter(gathered, weight, "sum", 0, name)
print([handle.rank, handle.world_size, taken, places, list(products[0].shape), list(scattered.shape)])
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(1, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_symmetric_memory_needs_no_peers(python, tmp_path, capfd) -> None:
    """8 MiB and a page of 2 MiB for the signals are taken once; each peer has addresses of its own."""
    needs_torch(python, (2, 6), "symmetric memory is made by another function")
    script = tmp_path / "symmetric.py"
    script.write_text(SYMMETRIC)
    one_rank.traced([python, str(script)], tmp_path / "run", None, World(16, (3,), 8))
    assert "[3, 8, 10, 8, [4096, 2048], [512, 2048]]" in capfd.readouterr().err
