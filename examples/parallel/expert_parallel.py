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
    """Sends each token to the experts that its router chooses, on whichever rank they are."""

    def __init__(self, width: int, experts: int, choices: int) -> None:
        super().__init__()
        self.ranks, self.choices, self.count = dist.get_world_size(), choices, experts
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(width, 4 * width) for _ in range(experts // self.ranks))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = hidden.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.choices, dim=-1)
        order = chosen.flatten().argsort()
        sent = tokens[order // self.choices]
        counts = torch.bincount(chosen.flatten(), minlength=self.count)  # tokens for each expert of all ranks
        coming = torch.empty_like(counts)  # from each rank, for each expert of this one
        dist.all_to_all_single(coming, counts)
        sends = counts.view(self.ranks, -1).sum(1).tolist()
        receives = coming.view(self.ranks, -1).sum(1).tolist()
        received = all_to_all_single(sent.new_empty(sum(receives), sent.size(1)), sent, receives, sends)
        returned = all_to_all_single(torch.empty_like(sent), self.compute(received, coming), sends, receives)
        result = torch.empty_like(returned).index_copy(0, order, returned).view(len(tokens), self.choices, -1)
        return (result * weights.unsqueeze(-1)).sum(1).view_as(hidden)

    def compute(self, received: torch.Tensor, coming: torch.Tensor) -> torch.Tensor:
        """Apply each expert to its tokens, which arrive by rank and then by expert."""
        parts = received.split(coming.tolist())
        here = len(self.experts)
        outputs: list[torch.Tensor] = [torch.empty(0)] * len(parts)
        for place, expert in enumerate(self.experts):
            own = parts[place::here]
            outputs[place::here] = expert(torch.cat(own)).split([len(part) for part in own])
        return torch.cat(outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", type=int, default=8, help="a multiple of the number of ranks")
    parser.add_argument("--choices", type=int, default=2, help="experts for each token")
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
        block.feed_forward = Experts(args.width, args.experts, args.choices)
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
