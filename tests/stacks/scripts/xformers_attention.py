"""xformers: attention with a causal bias, and with sequences of different lengths in one row."""

import torch
import xformers.ops as xops
from torch import nn

WIDTH, HEADS = 512, 8
packed = xops.fmha.BlockDiagonalMask.from_seqlens([300, 212, 512])


class Block(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.bias, self.norm = bias, nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        split = self.attention(self.norm(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        mixed = xops.memory_efficient_attention(*split.unbind(2), attn_bias=self.bias)
        return x + self.out(mixed.reshape(batch, length, WIDTH))


model = nn.Sequential(*(Block(bias) for bias in (xops.LowerTriangularMask(), packed) * 2)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(torch.randn(1, 1024, WIDTH, device="cuda")).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
