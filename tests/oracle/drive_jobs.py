"""A random training job: ``python drive_jobs.py SEED``, as one process or under ``torch.distributed.run``.

Beside its model it does what a replay of one thread's requests would miss: threads, streams, graphs, pools,
memory of other libraries, managed memory, processes of its own. ``XMEM_JOB_OUT`` names a file for what its
card was seen to hold, in bytes, one line for each look.
"""

import contextlib
import ctypes
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import torch
from torch import nn

MIB = 1 << 20
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
SEED = int(sys.argv[1])
TOGETHER = random.Random(f"jobs {SEED}")  # the same in all ranks
ALONE = random.Random(f"jobs {SEED} {RANK}")
KEPT = []  # until the job ends

# A process of the job's own, on the same card, that stays until the job lets it go.
OTHER_PROCESS = """
import sys, torch
kept = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda:" + sys.argv[2])
print("there", flush=True)
sys.stdin.read()
"""


def look():
    """Note what the card holds, as ``nvidia-smi`` would show it."""
    free, total = torch.cuda.mem_get_info()
    with Path(os.environ["XMEM_JOB_OUT"]).open("a") as out:
        out.write(f"{total - free}\n")


def some(most=64):
    return torch.empty(ALONE.randrange(1, most * MIB), dtype=torch.uint8, device="cuda")


def threads():
    device = torch.cuda.current_device()
    sizes = [ALONE.randrange(1, 32 * MIB) for _ in range(8)]

    def work(mine):
        torch.cuda.set_device(device)
        held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in mine]
        KEPT.append(held[0])

    workers = [threading.Thread(target=work, args=(sizes[i::2],)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def streams():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        held = some()
    held.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(side)


def graph():
    size = ALONE.randrange(1, 256)
    x = torch.zeros(size, 1024, device="cuda")
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = (x * 2 + 1).relu() @ torch.ones(1024, 512, device="cuda")
    captured.replay()
    KEPT.append((captured, y))


def pool():
    own = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(own):
        held = [some(32) for _ in range(3)]
    KEPT.append((own, held[0]))


def other_library():
    address = ctypes.c_void_p()
    size = ctypes.c_size_t(ALONE.randrange(1, 256) * MIB)
    assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(address), size) == 0
    if ALONE.random() < 0.5:
        look()
        assert ctypes.CDLL(None).cudaFree(address) == 0


def managed():
    address = ctypes.c_void_p()
    size = ctypes.c_size_t(ALONE.randrange(1, 128) * MIB)
    assert ctypes.CDLL(None).cudaMallocManaged(ctypes.byref(address), size, 1) == 0


def process():
    if PROCESSES:
        return
    command = [
        sys.executable,
        "-c",
        OTHER_PROCESS,
        str(ALONE.randrange(MIB, 256 * MIB)),
        str(torch.cuda.current_device()),
    ]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert started.stdout.readline() == b"there\n"
    PROCESSES.append(started)


PROCESSES = []


def empty_cache():
    KEPT[:] = KEPT[len(KEPT) // 2 :]
    torch.cuda.empty_cache()


def out_of_memory():
    with contextlib.suppress(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


EXTRAS = [threads, streams, graph, pool, other_library, managed, process, empty_cache, out_of_memory]


def main():
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    if WORLD > 1:
        torch.distributed.init_process_group("nccl")
    width = TOGETHER.choice([128, 512, 1024])
    model = nn.Sequential(
        *[m for _ in range(TOGETHER.randrange(1, 5)) for m in (nn.Linear(width, width), nn.GELU())]
    )
    model = model.cuda()
    if WORLD > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = TOGETHER.choice([torch.optim.SGD, torch.optim.AdamW])(model.parameters(), lr=0.1)
    extras = TOGETHER.sample(EXTRAS, TOGETHER.randrange(1, 6))
    before = TOGETHER.random() < 0.3
    for step in range(3):
        for extra in extras:
            if step < 2 and ALONE.random() < 0.6 and (step or before):
                extra()
                look()
        rows = ALONE.choice([16, 1024, 8192])
        loss = model(torch.randn(rows, width, device="cuda")).square().mean()
        look()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        look()
    for started in PROCESSES:
        started.communicate()
    if WORLD > 1:
        torch.distributed.destroy_process_group()


main()
