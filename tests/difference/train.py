"""A small language model whose training loop can be changed in the ways that a diff has to explain."""

import argparse

import torch
from torch import nn

options = argparse.ArgumentParser()
options.add_argument("--batch", type=int, default=4)
options.add_argument("--layers", type=int, default=2)
options.add_argument("--optimizer", default="AdamW")
options.add_argument("--wrap", action="store_true")
args = options.parse_args()

WIDTH, LENGTH, WORDS = 64, 32, 1000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attn(x, x, x, need_weights=False)[0]
        hidden = self.up(x)
        hidden = torch.nn.functional.gelu(hidden)
        return x + self.down(hidden)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(args.layers)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, tokens):
        return self.module(tokens)


model = Model().to("cuda")
if args.wrap:
    model = Wrapper(model)
optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=1e-3)
for _ in range(5):
    tokens = torch.randint(WORDS, (args.batch, LENGTH + 1)).to("cuda")
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
