"""A small GPT written by hand, fused attention, AdamW."""

import argparse

import torch
from torch import nn

options = argparse.ArgumentParser()
options.add_argument("--dropout", type=float, default=0.1)
options.add_argument("--contiguous", action="store_true", help="as many libraries prepare attention")
options = options.parse_args()
dropout = options.dropout
batch, length, width, heads, vocabulary = 2, 64, 32, 4, 200


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = (
            t.view(batch, length, heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm_1(x)).split(width, -1)
        )
        if options.contiguous:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm_2(x)))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens))))


model = GPT().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    tokens = torch.randint(0, vocabulary, (batch, length)).cuda()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
