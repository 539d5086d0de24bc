"""Recurrent layers on the GPU: their weights in one block, their values as before."""

import torch

torch.manual_seed(0)
for layers in (torch.nn.LSTM(8, 16, 2), torch.nn.GRU(8, 16, bias=False, bidirectional=True)):
    x = torch.randn(5, 3, 8)
    expected = layers(x)[0].detach()
    layers.to("cuda")
    result = layers(x.cuda())[0]
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    result.sum().backward()
    weights = list(layers.parameters())
    blocks = {weight.untyped_storage().data_ptr() for weight in weights}
    print(
        len(blocks),
        weights[0].untyped_storage().nbytes(),
        torch.equal(expected, result.detach().cpu()),
        all(weight.grad is not None and weight.is_cuda for weight in weights),
    )
    optimizer.step()
