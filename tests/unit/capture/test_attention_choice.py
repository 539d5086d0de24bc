"""What a capture takes CUDA to do with a call of attention is what the estimate takes it to do."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import xmem.capture
from xmem.orchestration.attention.fused_kernels import DEFAULT_ORDER, AttentionCall, Kernel, kernel_of
from xmem.run.target import Target

torch = pytest.importorskip("torch")
pytest.importorskip("torch.nn.attention")

RELEASE = (2, 12)


@pytest.fixture
def chooser(monkeypatch: pytest.MonkeyPatch) -> Any:
    path = Path(xmem.capture.__file__).parent / "child/xmem_child/on_cpu/attention_kernels.py"
    spec = importlib.util.spec_from_file_location("attention_kernels_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(torch, "__version__", "{}.{}.0".format(*RELEASE))
    return module


def heads(dtype: Any, number: int, length: int, width: int) -> Any:
    return torch.empty(2, number, length, width, dtype=dtype, device="meta")


CHOICES = (
    (DEFAULT_ORDER, False),
    ((Kernel.FLASH, Kernel.EFFICIENT, Kernel.MATH), False),  # as frameworks do that have no use for cuDNN
    ((Kernel.EFFICIENT, Kernel.MATH), False),
    ((Kernel.MATH, Kernel.CUDNN), False),
    ((Kernel.MATH, Kernel.FLASH), True),
)


@contextmanager
def allowed(kernels: tuple[Kernel, ...], in_order: bool) -> Iterator[None]:
    numbers = {Kernel.MATH: 0, Kernel.FLASH: 1, Kernel.EFFICIENT: 2, Kernel.CUDNN: 3}
    backends = [torch.nn.attention.SDPBackend(numbers[kernel]) for kernel in kernels]
    with torch.nn.attention.sdpa_kernel(backends, set_priority=in_order):
        yield


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_scores_are_kept_where_no_fused_kernel_takes_the_call(
    chooser: Any, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    differ = []
    for (
        choice,
        dtype,
        width,
        value_width,
        key_heads,
        key_length,
        masked,
        causal,
        dropout,
    ) in itertools.product(
        CHOICES,
        (torch.float16, torch.bfloat16, torch.float32, torch.float64),
        (30, 64, 200, 256, 320),
        (64, 200, 256),
        (4, 2),
        (100, 60),
        (False, True),
        (False, True),
        (0.0, 0.1),
    ):
        query, key = heads(dtype, 4, 100, width), heads(dtype, key_heads, key_length, width)
        value = heads(dtype, key_heads, key_length, value_width)
        mask = torch.empty(2, 1, 100, key_length, dtype=dtype, device="meta") if masked else None
        call = AttentionCall(
            query.element_size(),
            dtype is torch.bfloat16,
            *(2, 4, key_heads, 100, key_length, width, value_width),
            by_position=False,
            mask_elements=0 if mask is None else mask.numel(),
            causal=causal and not masked,
            dropout=dropout > 0,
            allowed=choice[0],
            in_order=choice[1],
        )
        with allowed(*choice):
            kept = chooser.computes_scores(query, key, value, mask, causal and not masked, dropout)
        if kept != (kernel_of(call, Target(capability, RELEASE)) is Kernel.MATH):
            differ.append(call)
    assert differ == []
