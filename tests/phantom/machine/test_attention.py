"""Attention's requests, held to those of the real PyTorch on a phantom GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightly import most_nightly
from xmem.orchestration.attention.fused_kernels import (
    AttentionCall,
    Kernel,
    kernel_of,
    write_backward,
    write_forward,
)
from xmem.orchestration.tape import Tape
from xmem.run.target import Target

from ..conftest import Phantom

_CALL = """
    import json, sys, torch
    import torch.nn.functional as F
    dtype, batch, heads, length, width, masked = json.loads(sys.argv[1])
    q, k, v = (
        torch.empty(batch, length, heads, width, dtype=getattr(torch, dtype), device="cuda", requires_grad=True)
        .mul(1).transpose(1, 2) for _ in range(3)
    )
    mask = torch.zeros(batch, 1, length, length, dtype=q.dtype, device="cuda") if masked else None
    def requests(begin):
        entries = torch.cuda.memory._snapshot()["device_traces"][0][begin:]
        signs = {"alloc": "+", "free_requested": "-"}
        return [signs[e["action"]] + str(e["size"]) for e in entries if e["action"] in signs]
    torch.cuda.memory._record_memory_history(context=None)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    forward = requests(0)
    gradient = torch.empty_like(out)
    begin = len(torch.cuda.memory._snapshot()["device_traces"][0])
    out.backward(gradient)
    version = [int(part) for part in torch.__version__.split(".")[:2]]
    print(json.dumps([version, forward, requests(begin)]))
"""


def requests(tape: Tape) -> list[str]:
    events = [""] * tape.events
    for size_bytes, born, died in zip(tape.size_bytes, tape.born, tape.died, strict=True):
        events[born] = f"+{size_bytes}"
        if died >= 0:
            events[died] = f"-{size_bytes}"
    return events


@pytest.mark.parametrize(
    ("gpu", "capability"), most_nightly([("h100", (9, 0)), ("a100-40gb", (8, 0)), ("rtx-3060", (8, 6))])
)
@pytest.mark.parametrize(
    ("dtype", "width", "masked"),
    [("float32", 64, False), ("float32", 80, True), ("bfloat16", 64, False), ("bfloat16", 128, True)],
)
def test_requests_of_one_call(
    phantom: Phantom, gpu: str, capability: tuple[int, int], dtype: str, width: int, masked: bool
) -> None:
    batch, heads, length = 4, 12, 200
    arguments = f'["{dtype}", {batch}, {heads}, {length}, {width}, {str(masked).lower()}]'
    version, forward, backward = phantom.run(_CALL, arguments, gpu=gpu).result
    target = Target(capability, tuple(version))
    half = dtype == "bfloat16"
    call = AttentionCall(2 if half else 4, half, batch, heads, heads, length, length, width, width)
    call = replace(call, mask_elements=batch * length * length if masked else 0)
    kernel = kernel_of(call, target)
    assert kernel is not Kernel.MATH
    tape = Tape()
    write_forward(tape, call, kernel, target)
    assert forward == requests(tape)
    tape = Tape()
    write_backward(tape, call, kernel, target)
    assert backward[: tape.events] == requests(tape)
