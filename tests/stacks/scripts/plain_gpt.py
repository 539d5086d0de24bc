"""A GPT in a loop by hand, as minGPT and nanoGPT have it: MODE of torch.compile, or eager."""

import sys

import torch
from torch import nn
from torch.nn import functional

mode = sys.argv[1] if len(sys.argv) > 1 else "eager"
WIDTH, HEADS, LAYERS, LENGTH, VOCABULARY, BATCH = 384, 6, 3, 256, 4096, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        split = self.attention(self.first(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.feed(self.second(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


model = Gpt().cuda()
if mode != "eager":
    model = torch.compile(model, mode=None if mode == "default" else mode)
optimizer = torch.optim.AdamW(model.parameters(), 3e-4, betas=(0.9, 0.95), fused=True)
data = torch.randint(0, VOCABULARY, (100_000,))
for step in range(8):
    starts = torch.randint(0, len(data) - LENGTH - 1, (BATCH,))
    tokens = torch.stack([data[start : start + LENGTH + 1] for start in starts]).pin_memory()
    tokens = tokens.to("cuda", non_blocking=True)
    with torch.autocast("cuda", torch.bfloat16):
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(step, loss.item(), flush=True)
