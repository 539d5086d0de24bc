"""PyTorch's own ways over several GPUs: ddp, dp, fsdp1, fsdp2, tp, or fsdp2 in a fake world (FAKE_WORLD)."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

kind = sys.argv[1]
fake = int(os.environ.get("FAKE_WORLD", "0"))
WIDTH = 1024


def block():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


if fake:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=fake)
elif kind != "dp":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")

model = nn.Sequential(*(block() for _ in range(4)))
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[torch.cuda.current_device()])
elif kind == "dp":
    model = nn.DataParallel(model.cuda())
elif kind == "fsdp1":
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.cuda.current_device()
    )
elif kind == "fsdp2":
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = dist.device_mesh.init_device_mesh("cuda", (dist.get_world_size(),))
    for part in model:
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    fully_shard(model, mesh=mesh)
elif kind == "tp":
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.device_mesh.init_device_mesh("cuda", (dist.get_world_size(),))
    model = model.cuda()
    for part in model:
        parallelize_module(part, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for _ in range(5):
    loss = model(torch.randn(8, 256, WIDTH, device="cuda")).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if dist.is_initialized() and not fake:
    dist.destroy_process_group()
