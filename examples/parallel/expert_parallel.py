"""Expert parallel training: each rank has some of the experts, and tokens travel to them.

torchrun --nproc-per-node 8 examples/parallel/expert_parallel.py
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from model import FeedForward, LanguageModel, batch_of, loss_of
from torch import nn
from torch.distributed.nn.functional import all_to_all_single


class Experts(nn.Module):
    """Sends each token to one expert, and its result back; every expert takes as many tokens."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.ranks = dist.get_world_size()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            FeedForward(width, 4 * width) for _ in range(max(1, experts // self.ranks))
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = hidden.flatten(0, 1)
        scores = self.router(tokens).softmax(-1)
        order = scores.argmax(-1).argsort()
        sent = tokens[order]
        received = all_to_all_single(torch.empty_like(sent), sent)
        parts = received.chunk(len(self.experts))
        computed = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        returned = all_to_all_single(torch.empty_like(computed), computed)
        result = torch.empty_like(tokens).index_copy(0, order, returned)
        return (result * scores.amax(-1, keepdim=True)).view_as(hidden)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = LanguageModel(args.layers, args.width)
    for block in model.blocks:
        block.feed_forward = Experts(args.width, args.experts)
    model.cuda()
    shared = [p for name, p in model.named_parameters() if ".experts." not in name]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(args.steps):
        tokens = batch_of(args.batch_size, args.length)
        loss_of(model(tokens), tokens).backward()
        for parameter in shared:
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
