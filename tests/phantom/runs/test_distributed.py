"""Several phantom GPUs: two ranks of one server, in one process or in two, and what each of them holds.

Expectations are computed by hand from the number of parameters. Every program warms cuBLAS up on the forward and the
backward thread first, whose workspaces stay allocated.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import xmem.capture

from ..conftest import needs_torch

_CHILD = Path(xmem.capture.__file__).parent / "child"
_MIB = 1 << 20
_WORKSPACE = 32 << 20  # of cuBLAS on an H100, for each thread that uses it
_SLACK = 64 << 10  # scalars: losses, Adam's step counts, DDP's map of used parameters

# As the child of a capture does it, at the end of `import torch`.
_SITE = f"""
import atexit, importlib.util, itertools, sys, time
atexit.register(time.sleep, 0.3)  # see conftest

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            sys.path.insert(0, {str(_CHILD)!r})
            from xmem_child.on_phantom import phantom_distributed
            phantom_distributed.install(itertools.count().__next__)

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""

# Four blocks of two matrices of 4 MiB elements each: 2^25 parameters, 128 MiB in float32.
_COMMON = """
import contextlib, gc, json, os, sys, tempfile, torch, torch.distributed as dist
from torch import nn

WIDTH = 1024

def model(width=WIDTH):
    def block():
        return nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )
    return nn.Sequential(*[block() for _ in range(4)])

def train(net, optimizer, width=WIDTH, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, width, device="cuda")).sum().backward()
        optimizer.step()

def warm_up(device):
    for dtype in (torch.float32, torch.bfloat16):
        layer = nn.Linear(8, 8, bias=False, device=device, dtype=dtype)
        layer(torch.ones(8, 8, device=device, dtype=dtype)).sum().backward()

def held(build):
    # Bytes that stay allocated after training, and the most there were, beyond those before. Buffers of reductions that
    # nobody has waited for are let go by the next one.
    dist.group.WORLD._wait_for_pending_works()
    dist.all_reduce(torch.ones(1, device="cuda"))
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    keep = build()
    gc.collect()
    return [torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before]

def join_run(**options):
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", **options)
    return dist.get_rank(), torch.device("cuda", local)

def report(result):
    # The results of all ranks, on the last line of rank 0.
    results = [None] * dist.get_world_size()
    dist.all_gather_object(results, result)
    if dist.get_rank() == 0:
        print(json.dumps(results), flush=True)
"""


def _run(phantom, code, *, launcher=True, gpu="h100", **environment):
    site = phantom.folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(_SITE)
    script = phantom.folder / "program.py"
    script.write_text(_COMMON + textwrap.dedent(code))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if launcher else []
    return phantom.run_command(
        [phantom.python, *launch, str(script)],
        gpu=gpu,
        devices=2,
        timeout=120,
        PYTHONPATH=str(site),
        OMP_NUM_THREADS="1",
        **environment,
    )


def test_data_parallel_ranks(phantom):
    ran = _run(
        phantom,
        """
        from torch.nn.parallel import DistributedDataParallel
        from torch.distributed.optim import ZeroRedundancyOptimizer

        rank, device = join_run()
        warm_up(device)

        class Partly(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = model(), nn.Linear(1024, 1024, bias=False)

            def forward(self, x):
                return self.used(x)

        def trained(build=model, zero=False, **options):
            def run():
                net = DistributedDataParallel(build().cuda(), device_ids=[device.index], **options)
                if zero:
                    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.Adam, fused=True)
                else:
                    optimizer = torch.optim.Adam(net.parameters(), fused=True)
                train(net, optimizer)
                without = sorted(name for name, p in net.named_parameters() if p.grad is None)
                return net, optimizer, results.append(without)
            return run

        results = []
        report({
            "plain": held(trained()),
            "view": held(trained(gradient_as_bucket_view=True)),
            "static": held(trained(gradient_as_bucket_view=True, static_graph=True)),
            "unused": held(trained(Partly, gradient_as_bucket_view=False, find_unused_parameters=True)),
            "zero": held(trained(gradient_as_bucket_view=True, zero=True)),
            "without": results,
        })
        dist.destroy_process_group()
        """,
    )
    parameters = 128 * _MIB
    for rank in ran.result:
        # Parameters, gradients and two moments; the buckets are gradients again unless these are views of them.
        assert rank["plain"][0] == pytest.approx(5 * parameters, abs=_SLACK)
        assert rank["view"][0] == pytest.approx(4 * parameters, abs=_SLACK)
        assert rank["static"][0] == pytest.approx(4 * parameters, abs=_SLACK)
        # 4 MiB more of parameters and of buckets, but no gradient and no moments.
        assert rank["unused"][0] == pytest.approx(5 * parameters + 8 * _MIB, abs=_SLACK)
        # A half of the moments.
        assert rank["zero"][0] == pytest.approx(3 * parameters, abs=_SLACK)
        assert rank["without"] == [[], [], [], ["module.unused.weight"], []]
    assert ran.refused() == {}


def test_sharded_ranks(phantom):
    needs_torch(phantom.python, (2, 6), "FSDP2 is elsewhere")
    ran = _run(
        phantom,
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
        import torch.distributed.checkpoint as checkpoint

        rank, device = join_run()
        warm_up(device)
        full = {}

        def fsdp2():
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            with torch.device("meta"):
                net = model()
            for block in net:
                fully_shard(block, mp_policy=policy)
            fully_shard(net, mp_policy=policy)
            net.to_empty(device="cuda")
            optimizer = torch.optim.AdamW(net.parameters(), fused=True)
            train(net, optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            return net, optimizer

        def fsdp1():
            net = FullyShardedDataParallel(
                model().cuda(), auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), use_orig_params=True,
                sync_module_states=True, device_id=device,
            )
            optimizer = torch.optim.AdamW(net.parameters(), fused=True)
            train(net, optimizer)
            return net, optimizer

        def tensor_parallel():
            mesh = init_device_mesh("cuda", (2,))
            net = model().cuda()
            for block in net:
                parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
            optimizer = torch.optim.AdamW(net.parameters(), fused=True)
            train(net, optimizer)
            return net, optimizer

        def checkpoints():
            net = model(256).cuda()
            fully_shard(net)
            optimizer = torch.optim.AdamW(net.parameters(), fused=True)
            train(net, optimizer, 256)
            gathered = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
            full.update({name: list(tensor.shape) for name, tensor in gathered.items()})
            folder = [tempfile.mkdtemp()]
            dist.broadcast_object_list(folder, 0)
            weights, state = get_state_dict(net, optimizer)
            checkpoint.save({"weights": weights, "state": state}, checkpoint_id=folder[0])
            checkpoint.load({"weights": weights, "state": state}, checkpoint_id=folder[0])
            return net, optimizer

        report({
            "fsdp2": held(fsdp2), "fsdp1": held(fsdp1), "tensor": held(tensor_parallel), "small": held(checkpoints),
            "full": full,
        })
        dist.destroy_process_group()
        """,
    )
    parameters, block = 128 * _MIB, 32 * _MIB
    for rank in ran.result:
        # Half of the parameters, gradients and two moments.
        assert rank["fsdp2"][0] == pytest.approx(2 * parameters, abs=_SLACK)
        assert rank["tensor"][0] == pytest.approx(2 * parameters, abs=_SLACK)
        assert rank["fsdp1"][0] == pytest.approx(2 * parameters, abs=_SLACK)
        # In backward of the last step there are, besides, one block's parameters gathered in bfloat16 and being
        # reduced in float32, and at most the next block's.
        assert 2 * parameters + block // 2 + block <= rank["fsdp2"][1] <= 2 * parameters + 4 * block
        if rank["full"]:
            assert rank["full"]["0.0.weight"] == [1024, 256]
    assert ran.result[0]["full"]
    assert ran.refused() == {}


def test_what_ranks_tell_each_other(phantom):
    ran = _run(
        phantom,
        """
        rank, device = join_run(device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
        told = {"backend": dist.get_backend(), "name": dist.group.WORLD.group_name}

        gathered = [None, None]
        dist.all_gather_object(gathered, {"rank": rank})
        told["gathered"] = gathered
        sent = [f"from {rank}"]
        dist.broadcast_object_list(sent, src=1, device=device)
        told["broadcast"] = sent
        got = [None]
        dist.scatter_object_list(got, ["a", "b"] if rank == 0 else None, src=0)
        told["scattered"] = got
        if rank == 0:
            dist.send_object_list(["hello"], 1, device=device)
        else:
            told["received"] = [None]
            dist.recv_object_list(told["received"], 0, device=device)
        dist.barrier()
        dist.barrier(async_op=True).wait()

        # Facts that the host wrote, through collectives.
        facts = torch.tensor([3, 4]).to(device)
        slots = torch.empty(2, 2, dtype=torch.int64, device=device)
        dist.all_gather_into_tensor(slots, facts)
        exchanged = torch.empty_like(facts)
        dist.all_to_all_single(exchanged, facts)
        dist.all_reduce(facts)
        dist.broadcast(facts, 0)
        told["facts"] = [slots.tolist(), exchanged.tolist(), facts.tolist()]

        # Groups within the world: one that not all are in, and one split off.
        for ranks in ([0], [0, 1]):
            group = dist.new_group(ranks)
            if rank in ranks:
                members = [None] * len(ranks)
                dist.all_gather_object(members, rank, group=group)
                dist.all_reduce(facts, group=group)
                dist.barrier(group=group)
                told[f"group {len(ranks)}"] = members
        group = dist.split_group(split_ranks=[[0, 1]])
        members = [None, None]
        dist.all_gather_object(members, rank, group=group)
        dist.all_reduce(facts, group=group)
        told["split"] = [members, group.size()]

        graph = torch.cuda.CUDAGraph()
        static = torch.ones(1024, device=device)
        with torch.cuda.graph(graph):
            dist.all_reduce(static)
        graph.replay()

        report(told)
        if rank == 1:
            sys.exit(0)  # without destroying the group
        dist.destroy_process_group()
        """,
    )
    for rank, told in enumerate(ran.result):
        assert told["backend"] == "nccl"
        assert told["gathered"] == [{"rank": 0}, {"rank": 1}]
        assert told["broadcast"] == ["from 1"]
        assert told["scattered"] == ["ab"[rank]]
        assert told["facts"] == [[[3, 4], [3, 4]], [3, 4], [3, 4]]
        assert told["group 2"] == [0, 1]
        assert told["split"] == [[0, 1], 2]
    assert ran.result[0]["group 1"] == [0]
    assert "group 1" not in ran.result[1]
    assert ran.result[1]["received"] == ["hello"]
    # Communicators of the world, of the group of both and of the split; one rank alone has no buffers.
    for process in ran.processes:
        for use in process.devices.values():
            assert use.peak_bytes >= 3 * 24 * 12 * _MIB


def test_two_devices_of_one_process(phantom):
    ran = _run(
        phantom,
        """
        import threading
        import torch.cuda.comm as comm

        def allocated():
            gc.collect()
            return [torch.cuda.memory_allocated(device) for device in range(2)]

        told = {}
        for device in range(2):
            warm_up(f"cuda:{device}")

        before = allocated()
        layers = [model().to(f"cuda:{device}") for device in range(2)]
        optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()], fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randn(4, WIDTH, device="cuda:0")
            for device, layer in enumerate(layers):
                x = layer(x.to(f"cuda:{device}"))
            x.sum().backward()
            optimizer.step()
        del x
        told["split"] = [now - then for now, then in zip(allocated(), before)]
        told["gradients"] = sorted({p.grad.device.index for layer in layers for p in layer.parameters()})
        del layers, layer, optimizer

        before = allocated()
        net = nn.DataParallel(model().cuda())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        torch.cuda.reset_peak_memory_stats(1)
        for _ in range(2):
            optimizer.zero_grad()
            out = net(torch.randn(8, WIDTH, device="cuda:0"))
            out.sum().backward()
            optimizer.step()
        told["parallel"] = [now - then for now, then in zip(allocated(), before)]
        told["replica"] = torch.cuda.max_memory_allocated(1) - before[1]
        told["output"] = [list(out.shape), out.device.index]

        facts = torch.tensor([1, 2, 3], device="cuda:0")
        other = torch.empty(3, dtype=torch.int64, device="cuda:1")
        other.copy_(facts, non_blocking=True)
        told["copies"] = [facts.to("cuda:1").tolist(), other.tolist(), other.device.index]
        told["pieces"] = [piece.tolist() for piece in comm.scatter(torch.arange(4).cuda(), [0, 1])]
        told["peer"] = torch.cuda.can_device_access_peer(0, 1)

        with torch.cuda.device(1):
            stream, event = torch.cuda.Stream(), torch.cuda.Event()
            event.record(stream)
        torch.cuda.Stream(device=0).wait_event(event)
        told["stream"] = [stream.device.index, event.query()]

        seen = []
        def other_thread():
            seen.append(torch.cuda.current_device())
            torch.cuda.set_device(1)
            seen.append(torch.empty(1, device="cuda").device.index)
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        told["threads"] = [*seen, torch.cuda.current_device()]
        print(json.dumps(told))
        """,
        launcher=False,
    )
    told, parameters = ran.result, 128 * _MIB
    assert told["split"] == pytest.approx([4 * parameters] * 2, abs=_SLACK)
    assert told["gradients"] == [0, 1]
    # Parameters, gradients and momentum on the first; a replica comes and goes on the second. Either has a thread of
    # its own for the forward pass, with a workspace of cuBLAS.
    assert told["parallel"] == pytest.approx([3 * parameters + _WORKSPACE, _WORKSPACE], abs=_SLACK)
    assert parameters <= told["replica"] - _WORKSPACE <= 2 * parameters
    assert told["output"] == [[8, 1024], 0]
    assert told["copies"] == [[1, 2, 3], [1, 2, 3], 1]
    assert told["pieces"] == [[0, 1], [2, 3]]
    assert told["peer"] is True
    assert told["stream"] == [1, True]
    assert told["threads"] == [0, 1, 0]
    assert ran.refused() == {}


@pytest.mark.nightly
def test_the_rank_that_serves_the_store_waits_for_the_others(phantom):
    ran = _run(
        phantom,
        """
        import socket
        import time
        import torch.multiprocessing as multiprocessing

        def work(rank, store):
            os.environ["LOCAL_RANK"] = str(rank)
            join_run(init_method=store, rank=rank, world_size=2)
            dist.all_reduce(torch.ones(1, device="cuda"))
            if rank == 1:
                time.sleep(1.5)  # on a GPU, rank 0 would not get past the sum below so long
            dist.all_reduce(torch.ones(1, device="cuda"))
            alone = dist.new_group([1])
            if rank == 1:
                dist.all_reduce(torch.ones(1, device="cuda"), group=alone)
            if rank == 0:
                dist.destroy_process_group()

        if __name__ == "__main__":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            multiprocessing.spawn(work, (f"tcp://127.0.0.1:{port}",), nprocs=2)
            print(json.dumps("done"))
        """,
        launcher=False,
    )
    assert ran.result == "done"
