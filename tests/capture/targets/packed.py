"""Packed sequences of device tensors: their lengths stay on the host."""

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
layer = torch.nn.LSTM(4, 8, batch_first=True)
x, lengths = torch.randn(3, 5, 4), torch.tensor([2, 5, 3])
expected = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0].data.detach()
layer.cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(2):
    packed = pack_padded_sequence(x.cuda(), lengths, batch_first=True, enforce_sorted=False)
    assert packed.data.is_cuda
    assert not packed.batch_sizes.is_cuda
    result = layer(packed)[0]
    if step == 0:
        assert torch.equal(result.data.cpu(), expected)
    padded, sizes = pad_packed_sequence(result, batch_first=True)
    assert padded.is_cuda
    assert not sizes.is_cuda
    assert sizes.tolist() == [2, 5, 3]
    padded.sum().backward()
    optimizer.step()
print("packed")
