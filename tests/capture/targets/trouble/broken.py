"""Fails in its own code after one step."""

import torch

model = torch.nn.Linear(4, 4).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(2, 4, device="cuda")).sum().backward()
optimizer.step()
raise ValueError("the data is not there")
