"""Pipeline parallel training with torch.distributed.pipelining.

torchrun --nproc-per-node 8 examples/parallel/pipeline.py --schedule 1f1b
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from model import LanguageModel, batch_of, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

SCHEDULES = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--pipeline", type=int, default=0, help="ranks of a pipeline; all by default")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2, help="blocks of each stage")
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    ranks = args.pipeline or dist.get_world_size()
    mesh = init_device_mesh("cuda", (dist.get_world_size() // ranks, ranks), mesh_dim_names=("dp", "pp"))
    group, rank = mesh["pp"].get_group(), mesh["pp"].get_local_rank()
    several = args.schedule in ("interleaved", "zbv")
    count = 2 * ranks if several else ranks
    if args.schedule == "zbv":
        numbers = [rank, count - 1 - rank]
    else:
        numbers = [rank, rank + ranks] if several else [rank]
    models = [
        LanguageModel(args.layers, args.width, first=number == 0, last=number == count - 1).cuda()
        for number in numbers
    ]
    stages = [
        PipelineStage(model, number, count, torch.device("cuda", torch.cuda.current_device()), group=group)
        for model, number in zip(models, numbers, strict=True)
    ]
    schedule = SCHEDULES[args.schedule](stages if several else stages[0], args.micro_batches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([p for model in models for p in model.parameters()], lr=1e-4)
    is_last = count - 1 in numbers
    for _ in range(args.steps):
        tokens = batch_of(args.batch_size, args.length)
        inputs = (tokens,) if 0 in numbers else ()
        schedule.step(*inputs, **({"target": tokens} if is_last else {}))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
