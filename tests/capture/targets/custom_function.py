"""A custom autograd function that looks at devices, activation checkpointing, and hooks."""

import torch
from torch.utils.checkpoint import checkpoint


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        assert grad.is_cuda and grad.device == factor.device, grad.device
        ones = torch.ones(grad.shape, device=grad.device)
        extra = torch.zeros(4, device="cuda")
        return grad * factor * ones, (grad * x).sum() + extra.sum()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.second = torch.nn.Linear(16, 4)
        self.factor = torch.nn.Parameter(torch.ones(()))

    def inner(self, x):
        assert x.is_cuda
        return torch.relu(self.first(x)) + torch.zeros(16, device="cuda")

    def forward(self, x):
        x = checkpoint(self.inner, x, use_reentrant=False)
        return self.second(Scale.apply(x, self.factor))


model = Net().to("cuda")
model.first.weight.register_hook(lambda grad: grad * torch.ones_like(grad, device="cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for i in range(5):
    x = torch.randn(8, 16).to("cuda")
    optimizer.zero_grad(set_to_none=True)
    model(x).square().mean().backward()
    assert model.first.weight.grad.is_cuda
    optimizer.step()
