"""A model whose parts are never called: a function of its own computes with its weights, as fused kernels do."""

import torch
from torch import nn


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, frozen, weight):
        ctx.save_for_backward(x, frozen)
        return x * frozen * weight

    @staticmethod
    def backward(ctx, gradient):
        x, frozen = ctx.saved_tensors
        return None, None, (gradient * x * frozen).sum(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Embedding(64, 512).requires_grad_(False)
        self.adapter = nn.LayerNorm(512, bias=False)

    def forward(self, tokens):
        return Scale.apply(self.base.weight[tokens], self.base.weight[0], self.adapter.weight)


model = Model().cuda()
# As Megatron keeps gradients: views of one buffer. As DeepSpeed keeps a part: an attribute of the parameter.
gradients = torch.zeros(4096, device="cuda")
model.adapter.weight.main_grad = gradients[:512]
model.base.weight.ds_tensor = torch.zeros(2048, device="cuda")
loose = torch.zeros(8192, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([model.adapter.weight, loose], lr=0.1)
for _ in range(3):
    (model.forward(torch.arange(8, device="cuda")).sum() + loose.sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
