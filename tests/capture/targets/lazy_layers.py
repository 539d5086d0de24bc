"""Trains a model whose layers take their sizes from the first batch: their parameters are not there before."""

import torch
from torch import nn

model = nn.Sequential(
    nn.LazyConv2d(16, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(8)
).to("cuda")
images = torch.randn(4, 3, 16, 16, device="cuda")
model(images)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for _ in range(3):
    optimizer.zero_grad()
    model(images).sum().backward()
    optimizer.step()
