"""Trains two steps in a thread that ends before the script does."""

import threading

import torch


def train():
    model = torch.nn.Linear(8, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 8).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


thread = threading.Thread(target=train)
thread.start()
thread.join()
print("joined")
