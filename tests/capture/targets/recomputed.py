"""Checkpointing under CUDA's autocast: recomputation restores the states of CUDA's autocast and of the CPU's."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
norm, layer = nn.LayerNorm(64).cuda(), nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD([*norm.parameters(), *layer.parameters()], lr=0.1)
seen = []


def block(x):
    y = layer(norm(x))
    seen.append((y.dtype, torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")))
    return torch.softmax(y, -1)


for _ in range(2):
    x = torch.randn(8, 64, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = checkpoint(block, x, use_reentrant=False)
        assert y.dtype == torch.float32
        with torch.autocast("cpu", enabled=False):
            assert layer(x).dtype == torch.bfloat16  # the device's state is another
        with torch.autocast("cuda", enabled=False):
            assert layer(x).dtype == torch.float32
    with torch.autocast("cpu"):
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert not torch.is_autocast_enabled("cuda")
        host = torch.softmax(torch.ones(4, 4) @ torch.ones(4, 4), -1)
        assert host.dtype == torch.bfloat16  # the CPU's list has no softmax
        with torch.autocast("cuda"):
            assert torch.get_autocast_dtype("cuda") == torch.float16
            assert torch.is_autocast_enabled("cpu")
        assert (torch.ones(4, 4) @ torch.ones(4, 4)).dtype == torch.bfloat16
    assert layer(x).dtype == torch.float32
    y.sum().backward()
    assert seen[-2] == seen[-1] == (torch.bfloat16, True, False)
    optimizer.step()
    optimizer.zero_grad()
print("recomputed", len(seen))
