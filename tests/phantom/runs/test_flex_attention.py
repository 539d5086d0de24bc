"""Flex attention in mode fake against captures of the same script on the phantom GPU: block by block."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest

from xmem.capture import capture
from xmem.estimation.pipeline import run_stages
from xmem.estimation.question import ask

from ..conftest import PYTHONS

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")

JOB = """
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, heads, kv_heads, length, width = {sizes}
    bias = torch.nn.Parameter(torch.zeros(heads, device="cuda", dtype=torch.bfloat16))

    def causal(b, h, q, k):
        return q >= k

    def relative(score, b, h, q, k):
        return score + (q - k)

    def learned(score, b, h, q, k):
        return score * bias[h]

    attend, make_mask = {attend}, {make_mask}
    qkv = torch.nn.Linear(256, (heads + 2 * kv_heads) * width, bias=False).to("cuda", torch.bfloat16)
    out = torch.nn.Linear(heads * width, 256, bias=False).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD([*qkv.parameters(), *out.parameters(), bias], lr=0.1)
    for _ in range(4):
        mask = {mask}
        x = torch.randn(batch, length, 256, device="cuda", dtype=torch.bfloat16)
        parts = qkv(x).split([heads * width, kv_heads * width, kv_heads * width], -1)
        q, k, v = (part.unflatten(-1, (-1, width)).transpose(1, 2) for part in parts)
        y = attend(q, k, v, score_mod={score_mod}, block_mask=mask, enable_gqa=True)
        (out(y.transpose(1, 2).flatten(2)) * 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
MASK = "make_mask(causal, batch, None, length, length, device='cuda')"
COMPILED = {"attend": "torch.compile(flex_attention)", "make_mask": "torch.compile(create_block_mask)"}
EAGER = {"attend": "flex_attention", "make_mask": "create_block_mask"}
TRAINED = "(2, 4, 2, 1024, 64)"
SCORES_BYTES = 2 * 4 * 1024 * 1024 * 4


def requests(script: Path, mode: str) -> tuple[list[tuple[int, int]], int]:
    """What the allocator is asked for in the second and third iteration, and the peak of what is allocated.

    A request is a size in units of the allocator, and how many others were made before it was freed. The peak
    is that of these iterations: the first one compiles on the phantom GPU.
    """
    path = script.with_suffix(f".{mode}.json")
    capture([PYTHONS[0], str(script)], path, mode=mode, timeout_s=240)
    stages = run_stages(path, ask(gpu="rtx-3060"))
    made = stages.workload.select(stages.workload.size_bytes > 0)
    rows = np.flatnonzero((made.iteration == 1) | (made.iteration == 2))
    units = (made.size_bytes[rows] + 511) // 512
    places = np.searchsorted(made.alloc_ns, made.free_ns[rows]) - rows[0]
    return list(zip(units.tolist(), places.tolist(), strict=True)), stages.unlimited.peak_allocated.bytes


def both(folder: Path, **choices: str) -> list[tuple[list[tuple[int, int]], int]]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(JOB).format(**choices))
    return [requests(script, mode) for mode in ("fake", "phantom")]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "choices",
    [
        {"mask": MASK, "score_mod": "relative", "sizes": TRAINED},
        {"mask": "None", "score_mod": "None", "sizes": "(2, 4, 4, 1000, 64)"},
        {"mask": "None", "score_mod": "None", "sizes": "(2, 4, 2, 96, 64)"},
    ],
    ids=["masked", "unmasked", "short"],
)
def test_compiled_it_asks_for_what_its_kernels_take_on_a_gpu(tmp_path: Path, choices: dict[str, str]) -> None:
    (made, _), (on_gpu, _) = both(tmp_path, **choices, **COMPILED)
    assert made == on_gpu


@pytest.mark.nightly
def test_a_gradient_of_what_it_captured_is_added_up_in_float32(tmp_path: Path) -> None:
    (made, _), (on_gpu, _) = both(tmp_path, mask=MASK, score_mod="learned", sizes=TRAINED, **COMPILED)
    # Compiled code frees some small blocks a few requests earlier.
    assert [size for size, _ in made] == [size for size, _ in on_gpu]


@pytest.mark.nightly
def test_eager_it_makes_the_scores_as_on_a_gpu(tmp_path: Path) -> None:
    (_, peak), (_, on_gpu) = both(tmp_path, mask=MASK, score_mod="relative", sizes=TRAINED, **EAGER)
    assert on_gpu > 5 * SCORES_BYTES
    assert peak == pytest.approx(on_gpu, rel=0.02)  # what the first call kept there
