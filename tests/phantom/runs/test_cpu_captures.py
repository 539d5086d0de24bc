"""Captures on the CPU, after all policies, against captures of the same script on the phantom GPU: block by block."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from nightly import most_nightly
from xmem.capture import capture
from xmem.estimation.pipeline import run_stages
from xmem.estimation.question import ask

from ..conftest import PYTHONS

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

ATTENTION = """
    import math, torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, dropout):
            super().__init__()
            self.norm = nn.LayerNorm(96)
            self.q, self.k, self.v, self.out = (nn.Linear(96, 96, bias=False) for _ in range(4))
            self.up, self.down = nn.Linear(96, 384, bias=False), nn.Linear(384, 96, bias=False)
            self.dropout = nn.Dropout(dropout)

        def forward(self, x):
            y = self.norm(x)
            q, k, v = (linear(y).view(2, 48, 6, 16).transpose(1, 2) for linear in (self.q, self.k, self.v))
            scores = q @ k.transpose(-1, -2) / math.sqrt(16)
            y = self.dropout(scores.softmax(-1)) @ v
            x = x + self.dropout(self.out(y.transpose(1, 2).reshape(2, 48, 96)))
            y = self.up(x)
            y = 0.5 * y * (1.0 + torch.tanh(0.8 * (y + 0.04 * torch.pow(y, 3.0))))
            return x + self.dropout(self.down(y))

    dropout, optimizer = {dropout}, "{optimizer}"
    model = nn.Sequential(nn.Embedding(500, 96), Block(dropout), Block(dropout), nn.Linear(96, 500, bias=False))
    model.cuda()
    optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=0.001)
    for _ in range(4):
        tokens = torch.randint(500, (2, 48)).cuda()
        optimizer.zero_grad()
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
"""


def requests(python: str, script: Path, mode: str) -> tuple[list[tuple[str, int]], int]:
    """What the allocator is asked for in the second and third iteration, and the peak that it reserves.

    A request is an allocation and its size in units of the allocator, or a free and which allocation it ends, told
    by its number in the run.
    """
    result = capture([python, str(script)], script.with_suffix(f".{mode}.json"), mode=mode, timeout_s=240)
    stages = run_stages(result.path, ask(gpu="rtx-3060"))
    made = stages.workload.select(stages.workload.size_bytes > 0)
    units: NDArray[np.int64] = (made.size_bytes + 511) // 512
    places = np.searchsorted(made.alloc_ns, made.free_ns)
    later = made.iteration >= 1
    sequence = [(f"{size} units", place) for size, place in zip(units[later], places[later], strict=True)]
    return sequence, stages.unlimited.peak_reserved.bytes


@pytest.mark.parametrize(
    "optimizer",
    most_nightly(["AdamW", "SGD", "Adam", "RMSprop", "Adagrad", "Adadelta", "NAdam"]),
)
@pytest.mark.nightly
def test_eager_attention_asks_for_what_it_asks_for_on_a_gpu(tmp_path: Path, optimizer: str) -> None:
    script = tmp_path / "train.py"
    dropout = 0.0 if optimizer == "SGD" else 0.1
    script.write_text(textwrap.dedent(ATTENTION).format(dropout=dropout, optimizer=optimizer))
    computed, made, on_gpu = (requests(PYTHONS[0], script, mode) for mode in ("real", "fake", "phantom"))
    assert computed == on_gpu
    assert made == on_gpu


RECURRENT = """
    import torch
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(500, 64)
            self.layers = nn.{layers}
            self.out = nn.Linear({width}, 10)

        def forward(self, tokens):
            result, last = self.layers(self.table(tokens))
            return self.out({taken})

    model = Tagger().cuda()
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.001)
    for _ in range(4):
        tokens = torch.randint(500, (8, 24)).cuda()
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("layers", "width", "taken"),
    [
        ("GRU(64, 128, 2, batch_first=True, bidirectional=True, dropout=0.3)", 256, "result"),
        pytest.param("GRU(64, 128, batch_first=True)", 128, "last[-1]", marks=pytest.mark.nightly),
        pytest.param(
            "LSTM(64, 128, 2, bidirectional=True, proj_size=48)", 96, "result", marks=pytest.mark.nightly
        ),
        pytest.param(
            "RNN(64, 128, 2, batch_first=True)", 128, "result + last[-1, :, None]", marks=pytest.mark.nightly
        ),
    ],
)
def test_recurrent_layers_ask_for_what_they_ask_for_on_a_gpu(
    layers: str, width: int, taken: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(RECURRENT).format(layers=layers, width=width, taken=taken))
    assert requests(PYTHONS[0], script, "fake") == requests(PYTHONS[0], script, "phantom")


TRANSFORMS = """
    import torch
    from torch import nn

    model = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(4):
        optimizer.zero_grad()
        signal = model(torch.randn(4096, 512).cuda())
        waves = torch.fft.irfft(torch.fft.rfft(signal))
        planes = torch.fft.rfft2(waves.view(8, 512, 512)).abs()
        odd = torch.fft.fft(signal[:, :263])
        (planes.mean() + odd.real.square().mean()).backward()
        optimizer.step()
"""


@pytest.mark.nightly
def test_transforms_take_the_work_areas_that_they_take_on_a_gpu(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRANSFORMS))
    made, on_gpu = (requests(PYTHONS[0], script, mode) for mode in ("fake", "phantom"))
    assert sorted(made[0]) == sorted(on_gpu[0])
    assert made[1] == on_gpu[1]


CHOSEN_ATTENTION = """
    import torch, torch.nn.functional as F
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

        def forward(self, x):
            query, key, value = self.heads(x).view(2, 256, 3, 4, 64).permute(2, 0, 3, 1, 4)
            result = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            return x + self.out(result.transpose(1, 2).reshape(2, 256, 256))

    model = nn.Sequential(Block(), Block()).cuda().to(torch.{dtype})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(4):
        optimizer.zero_grad()
        with sdpa_kernel([getattr(SDPBackend, name) for name in {kernels}]{options}):
            loss = model(torch.randn(2, 256, 256, dtype=torch.{dtype}).cuda()).square().mean()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("dtype", "kernels", "options"),
    most_nightly(
        [
            ("float32", ["MATH"], ""),
            ("bfloat16", ["MATH"], ""),
            ("bfloat16", ["CUDNN_ATTENTION"], ""),
            ("bfloat16", ["EFFICIENT_ATTENTION", "MATH"], ""),
            ("bfloat16", ["EFFICIENT_ATTENTION", "FLASH_ATTENTION"], ", set_priority=True"),
        ]
    ),
)
def test_attention_takes_the_kernels_that_the_script_allows(
    dtype: str, kernels: list[str], options: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    filled = CHOSEN_ATTENTION.format(dtype=dtype, kernels=kernels, options=options)
    script.write_text(textwrap.dedent(filled))
    assert requests(PYTHONS[0], script, "fake") == requests(PYTHONS[0], script, "phantom")


TRITON = """
    import torch, triton, triton.language as tl
    from torch import nn

    @triton.autotune([triton.Config({"BLOCK": block}) for block in (256, 512)], key=["n"])
    @triton.jit
    def doubled(x, y, n, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + place, 2 * tl.load(x + place, mask=place < n), mask=place < n)

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.empty_like(x)
            doubled[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
            return y

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    model = nn.Linear(96, 96).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(4):
        optimizer.zero_grad()
        Double.apply(model(torch.randn(64, 96).cuda())).square().sum().backward()
        optimizer.step()
"""


@pytest.mark.nightly
def test_kernels_of_triton_are_not_launched_where_nothing_is_computed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRITON))
    (_, peak), (_, peak_on_gpu) = (requests(PYTHONS[0], script, mode) for mode in ("fake", "phantom"))
    assert peak == peak_on_gpu > 256 << 20  # of the cache that tuning clears
