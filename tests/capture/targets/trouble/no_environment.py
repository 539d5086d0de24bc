"""Clears its environment before it imports torch."""

import os

os.environ.clear()

import torch  # noqa: E402

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(64, 64, device=device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(8, 64, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
