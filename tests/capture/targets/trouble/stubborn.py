"""Catches everything, even what should end it."""

import torch

model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    try:
        model(torch.randn(2, 4).cuda()).sum().backward()
        optimizer.step()
    except:
        print("ignored")
    finally:
        optimizer.zero_grad()
