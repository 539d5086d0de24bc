"""Flex attention in captures that compute nothing: compiled it makes no scores, eager it does."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

import xmem
from nightly import most_nightly
from xmem.errors import CaptureError

from .conftest import Captured, capture, needs_torch

pytestmark = needs_torch

JOB = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

LENGTH = 2048
bias = torch.nn.Parameter(torch.zeros(4, device="cuda"))

def causal(b, h, q, k):
    return q >= k

def learned(score, b, h, q, k):
    return score * bias[h]

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 3 * 64)

    def forward(self, x, mask=None, score_mod=None, attend=flex_attention, **options):
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return attend(q, k, v, score_mod=score_mod, block_mask=mask, **options).transpose(1, 2).flatten(2)

def train(call, steps=2):
    for _ in range(steps):
        call(torch.randn(1, LENGTH, 64, device="cuda", requires_grad=True)).sum().backward()
        optimizer.step()

model = Attention().cuda()
optimizer = torch.optim.SGD([*model.parameters(), bias], lr=0.1)
"""
SCORES_BYTES = 4 * 2048 * 2048 * 4


def captured(folder: Path, lines: str) -> Captured:
    script = folder / "train.py"
    script.write_text(JOB + textwrap.dedent(lines))
    path = folder / "trace.json"
    return Captured(
        capture([sys.executable, str(script)], path, mode="fake", iterations=2, timeout_s=120), "", ""
    )


COMPILED = {
    "a function": "attend = torch.compile(flex_attention)\ntrain(lambda x: model(x, attend=attend))",
    "a model": "compiled = torch.compile(model)\ntrain(compiled)",
    "a model in place": "model.compile()\ntrain(model)",
    "a function decorated": "@torch.compile\ndef run(x):\n    return model(x)\ntrain(run)",
    "recomputed": (
        "@torch.compile\ndef run(x):\n    return checkpoint(model, x, use_reentrant=False)\ntrain(run)"
    ),
    "a mask": (
        "mask = torch.compile(create_block_mask)(causal, None, None, LENGTH, LENGTH, device='cuda')\n"
        "train(torch.compile(lambda x: model(x, mask)))"
    ),
    "what it captured": (
        "train(torch.compile(lambda x: model(x, score_mod=learned)))\nassert bias.grad is not None"
    ),
}


@pytest.mark.parametrize("lines", most_nightly(COMPILED.values(), at_once=2), ids=COMPILED)
def test_compiled_it_makes_no_scores(tmp_path: Path, lines: str) -> None:
    blocks = captured(tmp_path, lines).blocks
    assert max(block.size_bytes for block in blocks) < SCORES_BYTES / 16
    assert sum(block.size_bytes == 4 * 2048 * 4 for block in blocks) >= 4  # logarithms of sums


EAGER = {
    "itself": "train(model)",
    "another backend": "train(torch.compile(model, backend='eager'))",
    "a mask": (
        "mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device='cuda')\n"
        "train(lambda x: model(x, mask))"
    ),
    "what it captured": "train(lambda x: model(x, score_mod=learned))\nassert bias.grad is not None",
}


@pytest.mark.parametrize("lines", most_nightly(EAGER.values()), ids=EAGER)
def test_eager_it_makes_the_scores_and_keeps_none(tmp_path: Path, lines: str) -> None:
    run = captured(tmp_path, lines)
    scores = [block for block in run.blocks if block.size_bytes == SCORES_BYTES]
    assert len(scores) > 4
    assert all(block.free_ns is not None for block in scores)
    estimate = xmem.estimate(run.result.path, gpu="rtx-3060")
    assert estimate.peak_allocated_bytes > 2 * SCORES_BYTES
    assert any("sorts indices" in line for line in estimate.assumptions) == ("learned" in lines)


def test_a_backend_whose_kernels_are_not_known_is_refused(tmp_path: Path) -> None:
    lines = "train(torch.compile(lambda x: model(x, kernel_options={'BACKEND': 'FLASH'})))"
    with pytest.raises(CaptureError, match="BACKEND='FLASH': --mode fake does not know"):
        captured(tmp_path, lines)
