"""Llama 3.1 405B on 1,024 GPUs: tensor parallel 8, pipeline parallel 16, FSDP2 over the rest.

Each rank builds the stage that it holds, and passes micro-batches in the order of 1F1B.

xmem-fast run --gpu h100 --world-size 1024 --ranks 0,512,1023 -- examples/parallel/llama_405b.py
"""

from __future__ import annotations

import argparse
import os
from collections import deque

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS_KV, HEAD_WIDTH, HIDDEN, VOCABULARY, LAYERS = 16384, 8, 128, 53248, 128256, 126


class Block(nn.Module):
    """Grouped-query attention and a gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, HEADS_KV * HEAD_WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, HEADS_KV * HEAD_WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)
        self.feed_forward_norm = nn.RMSNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        normed = self.attention_norm(hidden)
        query, key, value = (
            layer(normed).view(batch, length, -1, HEAD_WIDTH).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        hidden = hidden + self.output(mixed.transpose(1, 2).reshape(batch, length, -1))
        normed = self.feed_forward_norm(hidden)
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Stage(nn.Module):
    """The blocks of a stage; the first has the embedding, the last the head. Activations are recomputed."""

    def __init__(self, blocks: int, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.RMSNorm(WIDTH) if last else None
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if last else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return hidden if self.norm is None or self.head is None else self.head(self.norm(hidden))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor", type=int, default=8)
    parser.add_argument("--pipeline", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    shape = (args.pipeline, dist.get_world_size() // args.tensor // args.pipeline, args.tensor)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("pp", "dp", "tp"))
    number = mesh["pp"].get_local_rank()
    first, last = number == 0, number == args.pipeline - 1
    stage = sharded_stage(number, args.pipeline, mesh)
    optimizer = torch.optim.AdamW(stage.parameters())
    waiting: deque[tuple[torch.Tensor, torch.Tensor]] = deque()

    def forward() -> None:
        if first:
            given = torch.randint(0, VOCABULARY, (1, args.length), device="cuda")
        else:
            given = torch.empty(1, args.length, WIDTH, device="cuda", dtype=torch.bfloat16).requires_grad_()
        result = stage(given)
        if last:
            targets = torch.randint(0, VOCABULARY, (args.length,), device="cuda")
            result = functional.cross_entropy(result.flatten(0, 1).float(), targets)
        waiting.append((given, result))

    def backward() -> None:
        _, result = waiting.popleft()
        result.backward(None if last else torch.empty_like(result))

    ahead = min(args.pipeline - number, args.micro_batches)
    for _ in range(args.steps):
        for _ in range(ahead):
            forward()
        for _ in range(args.micro_batches - ahead):
            backward()
            forward()
        while waiting:
            backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def sharded_stage(number: int, stages: int, mesh: object) -> nn.Module:
    """Return a stage on the GPU, its layers split over ``tp`` and its parameters over ``dp``."""
    with torch.device("meta"):
        stage = Stage(
            LAYERS // stages + (number < LAYERS % stages), first=number == 0, last=number == stages - 1
        )
    plan = {name: ColwiseParallel() for name in ("query", "key", "value", "gate", "up")}
    plan |= {name: RowwiseParallel() for name in ("output", "down")}
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in stage.blocks:
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(stage, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
    return stage.to_empty(device="cuda")


if __name__ == "__main__":
    main()
