"""Operators for which a GPU has a kernel of its own: in mode fake they return what that returns."""

from __future__ import annotations

import sys
from pathlib import Path

from .conftest import needs_torch, run_capture
from .test_fake import printed

pytestmark = needs_torch

KERNELS = """
import torch, torch.nn.functional as F
attention = F.scaled_dot_product_attention
def heads(dtype, width=64, by_position=True):
    shape = (2, 128, 4, width) if by_position else (2, 4, 128, width)
    made = torch.randn(shape, dtype=dtype, device="cuda", requires_grad=True)
    return made.transpose(1, 2) if by_position else made
def by_position(result):
    return result.transpose(1, 2).is_contiguous()
def fused(result):
    return "DotProduct" in type(result.grad_fn).__name__
half, whole = torch.bfloat16, torch.float32
for query in (heads(half), heads(half, by_position=False), heads(whole, by_position=False)):
    result = attention(query, query, query)
    print(fused(result), by_position(result))
few = heads(whole)[:, :2]
scattered = heads(whole).transpose(2, 3)
for query, key, options in (
    (heads(whole), few, {"enable_gqa": True}),
    (heads(half), heads(half)[:, :2], {"enable_gqa": True}),
    (heads(whole, 30), heads(whole, 30), {}),
    (scattered, scattered, {}),
    (heads(torch.float64), heads(torch.float64), {}),
):
    print(fused(attention(query, key, key, **options)))
ones = torch.ones(100, device="cuda")
for loss in (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy):
    print(loss(ones.requires_grad_(), torch.zeros_like(ones)).untyped_storage().nbytes())
x, h = torch.randn(4, 8, device="cuda"), torch.randn(4, 16, device="cuda")
lstm, gru = torch.nn.LSTMCell(8, 16).cuda(), torch.nn.GRUCell(8, 16, bias=False).cuda()
output, state = lstm(x, (h, h))
print(type(output.grad_fn).__name__, type(gru(x, h).grad_fn).__name__)
(output.sum() + gru(x, h).sum()).backward()
image = torch.randn(2, 8, 4, 4, device="cuda", dtype=torch.half)
scale = torch.ones(8, device="cuda")
mean, invstd = torch.batch_norm_stats(image, 1e-5)
sums = torch.batch_norm_backward_reduce(image, image, mean, invstd, scale, True, True, False)
count = torch.ones(1, dtype=torch.int, device="cuda")
gradient = torch.batch_norm_backward_elemt(image, image, mean, invstd, scale, sums[0], sums[1], count)
print(mean.dtype, [s if s is None else tuple(s.shape) for s in sums], gradient.shape == image.shape)
print([tuple(p.grad.shape) for p in (*lstm.parameters(), *gru.parameters())])
"""
TRAIN = """
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


def test_kernels_of_the_gpu_return_what_they_return_there(tmp_path: Path) -> None:
    lines = printed(tmp_path, KERNELS + TRAIN)
    # flash lays its result out as the query, the memory-efficient kernel by position
    assert lines[:3] == ["True True", "True False", "True True"]
    # grouped heads of float32, odd widths, scattered heads and float64 have no fused kernel
    assert lines[3:8] == ["False", "True", "False", "False", "False"]
    assert lines[8:12] == ["400", "400", "4", "400"]
    assert lines[12] == "ThnnFusedLstmCellBackward0 ThnnFusedGruCellBackward0"
    assert lines[13] == "torch.float32 [(8,), (8,), (8,), None] True"
    assert lines[14] == str([(64, 8), (64, 16), (64,), (64,), (48, 8), (48, 16)])


def test_an_estimate_says_that_graphs_of_gradients_run_in_another_order_on_a_gpu(tmp_path: Path) -> None:
    path, out = tmp_path / "train.py", tmp_path / "out"
    out.mkdir()
    path.write_text(
        "import torch\n"
        "x = torch.randn(4, 8, device='cuda', requires_grad=True)\n"
        "slope = torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]\n"
        "slope.sum().backward()\n" + TRAIN
    )
    noted = run_capture(out, [sys.executable, str(path)], mode="fake").xmem
    assert any("create_graph=True" in said for said in noted["assumptions"])
    assert noted["doubts"] == ["graphs_of_gradients"]


CHOICES = """
import torch, torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
x = torch.randn(2, 4, 64, 64, device="cuda", requires_grad=True)
def attend(*kernels, **options):
    with sdpa_kernel(list(kernels), **options):
        return F.scaled_dot_product_attention(x, x, x)
F.scaled_dot_product_attention(x, x, x)
attend(SDPBackend.EFFICIENT_ATTENTION)
x = torch.randn(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
assert attend(SDPBackend.FLASH_ATTENTION).is_contiguous()  # as the query
assert attend(SDPBackend.EFFICIENT_ATTENTION).transpose(1, 2).is_contiguous()  # by position
x = x.detach().float()
attend(SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, set_priority=True)
try:
    attend(SDPBackend.FLASH_ATTENTION)
except RuntimeError as error:
    assert str(error) == "No available kernel. Aborting execution."
else:
    raise SystemExit("a kernel that takes no float32 ran")
x = torch.randn(4, 8, device="cuda")
"""


def test_what_a_script_allows_attention_is_noted_and_holds(tmp_path: Path) -> None:
    path, out = tmp_path / "train.py", tmp_path / "out"
    out.mkdir()
    path.write_text(CHOICES + TRAIN)
    run = run_capture(out, [sys.executable, str(path)], mode="fake")
    fused = ["memory-efficient", "flash", "memory-efficient"]
    assert run.xmem["attention"]["kernels"] == [*fused, "math,memory-efficient"]
    assert run.xmem["attention"]["in_order"] == [0, 0, 0, 1]
    assert run.xmem["attention"]["time_ns"] == sorted(run.xmem["attention"]["time_ns"])


def test_an_estimate_says_that_transforms_hold_memory_longer_than_on_a_gpu(tmp_path: Path) -> None:
    path, out = tmp_path / "train.py", tmp_path / "out"
    out.mkdir()
    path.write_text(
        "import torch\n"
        "from torch.func import grad, vmap\n"
        "x = torch.randn(4, 8, device='cuda')\n"
        "vmap(grad(lambda row: (row**2).sum()))(x)\n" + TRAIN
    )
    noted = run_capture(out, [sys.executable, str(path)], mode="fake").xmem
    assert noted["doubts"] == ["transforms"]
    assert any("torch.func's transforms" in said for said in noted["assumptions"])
