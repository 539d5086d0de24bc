"""Things that scripts do, each of which prints what it knows without computing: the same on any device.

many_kinds.py DEVICE
"""

import copy
import io
import json
import sys

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

device = sys.argv[1]
PROGRAMS = []


def program(function):
    PROGRAMS.append(function)
    return function


def sizes(*tensors):
    return [list(tensor.shape) for tensor in tensors]


@program
def gradients_of_each_sample():
    model = nn.Linear(32, 4).to(device)
    parameters = dict(model.named_parameters())

    def loss(given, x):
        return functional_call(model, given, (x,)).sum()

    found = vmap(grad(loss), in_dims=(None, 0))(parameters, torch.randn(8, 32, device=device))
    return sizes(*found.values())


@program
def checkpoints():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(device)
    x = torch.randn(8, 64, device=device, requires_grad=True)
    for reentrant in (True, False):
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    return sizes(x.grad)


@program
def averages():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(device)
    copied, averaged = copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    copied.load_state_dict(torch.load(file))
    model(torch.randn(2, 3, 32, 32, device=device)).sum().backward()
    averaged.update_parameters(model)
    return [int(averaged.n_averaged), int(model[1].num_batches_tracked)]


@program
def scaled_losses():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(7200, 5)).to(device)
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    for _ in range(2):
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(torch.randn(4, 3, 32, 32, device=device))
            loss = F.cross_entropy(logits, torch.randint(0, 5, (4,), device=device), label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler.get_scale()


@program
def recurrent_layers():
    one = nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True, dropout=0.1).to(device)
    other = nn.GRU(64, 8).to(device)
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(4, 10, 16, device=device), torch.tensor([10, 7, 7, 2]), batch_first=True
    )
    unpacked, lengths = nn.utils.rnn.pad_packed_sequence(one(packed)[0], batch_first=True)
    result, _ = other(unpacked.transpose(0, 1))
    result.sum().backward()
    return [*sizes(packed.data, unpacked, result), packed.batch_sizes.tolist(), lengths.tolist()]


@program
def decompositions():
    square = torch.randn(16, 16, device=device)
    positive = square @ square.T + 100 * torch.eye(16, device=device)
    return sizes(
        *torch.linalg.svd(square),
        *torch.linalg.qr(square),
        torch.linalg.eigvalsh(positive),
        torch.linalg.cholesky(positive),
        torch.linalg.inv(positive),
    )


@program
def spectra():
    signal = torch.randn(4, 4000, device=device)
    return sizes(torch.fft.rfft(signal).abs(), torch.stft(signal, 400, return_complex=True))


@program
def sparse_gradients():
    table = nn.Embedding(1000, 16, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(table.parameters())
    table(torch.arange(32, device=device)).sum().backward()
    optimizer.step()
    bags = nn.EmbeddingBag(100, 8).to(device)
    places, starts = torch.arange(20, device=device), torch.tensor([0, 5, 10], device=device)
    return [list(table.weight.grad.shape), *sizes(bags(places, starts))]


@program
def own_functions():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            return 2 * x * gradient

    x = torch.randn(1024, 1024, device=device, requires_grad=True)
    Square.apply(x).sum().backward()
    return sizes(x.grad)


@program
def drawn():
    logits = nn.Linear(8, 4).to(device)(torch.randn(5, 8, device=device))
    chosen = torch.distributions.Categorical(logits=logits)
    action = chosen.sample()
    normal = torch.distributions.Normal(torch.zeros(3, device=device), 1.0)
    return sizes(action, chosen.log_prob(action), normal.rsample())


@program
def padded_attention():
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    padding = torch.zeros(2, 10, dtype=torch.bool, device=device)
    padding[:, 7:] = True
    trained = model(torch.randn(2, 10, 64, device=device), src_key_padding_mask=padding)
    trained.sum().backward()
    model.eval()
    with torch.no_grad():
        inferred = model(torch.randn(2, 10, 64, device=device), src_key_padding_mask=padding)
    return [*sizes(trained, inferred), int(padding.sum())]


@program
def images():
    where = F.affine_grid(torch.eye(2, 3, device=device).expand(2, 2, 3), (2, 3, 8, 8), align_corners=False)
    sampled = F.grid_sample(torch.randn(2, 3, 8, 8, device=device), where, align_corners=False)
    larger = F.interpolate(sampled, scale_factor=2, mode="bilinear")
    return sizes(larger, F.pixel_shuffle(torch.randn(1, 8, 4, 4, device=device), 2), F.unfold(sampled, 3))


if __name__ == "__main__":
    print(json.dumps({function.__name__: function() for function in PROGRAMS}), flush=True)
    model = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 64, device=device)).sum().backward()
        optimizer.step()
