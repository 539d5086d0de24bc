"""DistributedDataParallel as torchrun starts it, with a world of one or two processes."""

import os
import socket
import sys

import torch
import torch.distributed as dist

world = int(sys.argv[1])


def train(rank, port):
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
    }
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4).to(rank), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        model(torch.randn(4, 8, device=rank)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if world == 1:
        train(0, port)
    else:
        torch.multiprocessing.spawn(train, (port,), nprocs=world)
