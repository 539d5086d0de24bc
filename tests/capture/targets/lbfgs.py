"""LBFGS with a closure; the model is built under a device context."""

import torch

with torch.device("cuda"):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    x = torch.linspace(-1, 1, 64).view(8, 8)
assert next(model.parameters()).is_cuda and x.device == torch.device("cuda:0")
target = x.sum(1, keepdim=True).cpu().numpy()
target = torch.from_numpy(target).to(model[0].weight.device)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3)


def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), target)
    loss.backward()
    return loss


for epoch in range(10):
    print(float(optimizer.step(closure)))
