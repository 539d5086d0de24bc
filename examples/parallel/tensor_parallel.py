"""Tensor and sequence parallel training with DTensor, with FSDP2 over the rest of the ranks.

torchrun --nproc-per-node 8 examples/parallel/tensor_parallel.py --tensor 4
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from model import LanguageModel, batch_of, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor", type=int, default=2, help="ranks that share each layer")
    parser.add_argument("--sequence", action="store_true", help="shard the norms' activations too")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    data = dist.get_world_size() // args.tensor
    mesh = init_device_mesh("cuda", (data, args.tensor), mesh_dim_names=("dp", "tp"))
    model = LanguageModel(args.layers, args.width).cuda()
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan(sequence=args.sequence))
    if args.sequence:
        outer = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        parallelize_module(model, mesh["tp"], outer)
    if data > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    # Parameters are tensors and DTensors, which kernels for all of them at once refuse in older releases.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    for _ in range(args.steps):
        tokens = batch_of(args.batch_size, args.length)
        loss_of(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def plan(*, sequence: bool) -> dict[str, object]:
    """Return how the layers of a block are shared."""
    columns = {
        name: ColwiseParallel()
        for name in (
            "attention.query",
            "attention.key",
            "attention.value",
            "feed_forward.gate",
            "feed_forward.up",
        )
    }
    rows = RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
    layers: dict[str, object] = {**columns, "attention.output": rows, "feed_forward.down": rows}
    if sequence:
        gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        layers |= {
            "attention_norm": SequenceParallel(),
            "feed_forward_norm": SequenceParallel(),
            "attention": gathered,
            "feed_forward": gathered,
        }
    return layers


if __name__ == "__main__":
    main()
