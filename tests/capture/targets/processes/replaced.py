"""Trains a little, then starts again in the same process with an environment of its own, as some programs do to
preload a library."""

import os
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(64, 64, device=device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def step():
    model(torch.randn(8, 64, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


step()
if "STARTED_AGAIN" not in os.environ:
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "STARTED_AGAIN": "1"})
for _ in range(5):
    step()
