"""Never asks for a GPU."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adagrad(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).mean().backward()
    optimizer.step()
