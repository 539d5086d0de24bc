"""What CUDA's attention kernels allocate: held to requests that PyTorch made on the phantom GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xmem.orchestration.attention.fused_kernels import (
    AttentionCall,
    Kernel,
    efficient_workspace_bytes,
    kernel_of,
    lies_by_position,
    write_backward,
    write_forward,
)
from xmem.orchestration.tape import Tape
from xmem.run.target import Target

RTX_3060_26 = Target((8, 6), (2, 6))
RTX_3060 = Target((8, 6), (2, 12))
A100 = Target((8, 0), (2, 6))
H100 = Target((9, 0), (2, 12))
B200 = Target((10, 0), (2, 12))
RTX_5090 = Target((12, 0), (2, 12))
T4 = Target((7, 5), (2, 6))

FLOAT = AttentionCall(4, False, 2, 4, 4, 100, 100, 64, 64)
BFLOAT = AttentionCall(2, True, 2, 4, 4, 100, 100, 64, 64)
HALF = replace(BFLOAT, bfloat16=False)
MASK = 2 * 100 * 100


def sized(call: AttentionCall, *, length: int, width: int) -> AttentionCall:
    return replace(call, length=length, key_length=length, width=width, value_width=width)


def requests(tape: Tape) -> str:
    events = [""] * tape.events
    for size_bytes, born, died in zip(tape.size_bytes, tape.born, tape.died, strict=True):
        events[born] = f"+{size_bytes}"
        if died >= 0:
            events[died] = f"-{size_bytes}"
    return " ".join(events)


def forward(call: AttentionCall, target: Target) -> str:
    tape = Tape()
    write_forward(tape, call, kernel_of(call, target), target)
    return requests(tape)


def backward(call: AttentionCall, target: Target) -> str:
    tape = Tape()
    write_backward(tape, call, kernel_of(call, target), target)
    return requests(tape)


@pytest.mark.parametrize(
    ("call", "target", "kernel"),
    [
        (FLOAT, RTX_3060, Kernel.EFFICIENT),
        (replace(FLOAT, dropout=True), RTX_3060, Kernel.EFFICIENT),
        (sized(FLOAT, length=100, width=62), RTX_3060, Kernel.MATH),
        (replace(FLOAT, key_heads=2), RTX_3060, Kernel.MATH),
        (replace(FLOAT, item_bytes=8), RTX_3060, Kernel.MATH),
        (BFLOAT, RTX_3060, Kernel.FLASH),
        (replace(BFLOAT, key_heads=2), RTX_3060, Kernel.FLASH),
        (replace(BFLOAT, mask_elements=MASK), RTX_3060, Kernel.EFFICIENT),
        (replace(BFLOAT, mask_elements=MASK, key_heads=2), RTX_3060, Kernel.MATH),
        (sized(BFLOAT, length=100, width=60), RTX_3060, Kernel.FLASH),
        (replace(sized(BFLOAT, length=100, width=60), mask_elements=MASK), RTX_3060, Kernel.MATH),
        (sized(BFLOAT, length=200, width=200), RTX_3060, Kernel.EFFICIENT),
        (sized(BFLOAT, length=200, width=200), B200, Kernel.FLASH),
        (sized(BFLOAT, length=200, width=256), RTX_3060, Kernel.FLASH),
        (sized(BFLOAT, length=200, width=264), RTX_3060, Kernel.EFFICIENT),
        (BFLOAT, H100, Kernel.CUDNN),
        (BFLOAT, Target((9, 0), (2, 6)), Kernel.FLASH),
        (replace(BFLOAT, dropout=True), H100, Kernel.FLASH),
        (replace(BFLOAT, mask_elements=MASK), B200, Kernel.CUDNN),
        (replace(sized(BFLOAT, length=200, width=160), mask_elements=MASK), B200, Kernel.EFFICIENT),
        (HALF, T4, Kernel.EFFICIENT),
        (BFLOAT, T4, Kernel.MATH),
    ],
)
def test_the_kernel_that_cuda_takes(call: AttentionCall, target: Target, kernel: Kernel) -> None:
    assert kernel_of(call, target) is kernel


@pytest.mark.parametrize(
    ("call", "target", "expected"),
    [
        # sums of rows: 2 x 4 x 128 floats, the length up to a multiple of 32
        (FLOAT, RTX_3060, "+204800 +4096"),
        # a mask of 2 x 100 x 100 floats is padded to 104 columns; a bool one is made into numbers first
        (replace(FLOAT, mask_elements=MASK), RTX_3060, "+83200 +204800 +4096"),
        (
            replace(FLOAT, mask_elements=MASK, bool_mask=True),
            RTX_3060,
            "+4 +4 +80000 -4 -4 +83200 -80000 +204800 +4096",
        ),
        (
            replace(sized(BFLOAT, length=100, width=256), mask_elements=MASK),
            RTX_3060_26,
            "+41600 +409600 +4096 +819200 -819200",
        ),
        (BFLOAT, RTX_3060_26, "+102400 +3200"),
        (BFLOAT, RTX_3060, "+102400 +3200 +16 +8"),
        (replace(BFLOAT, dropout=True), RTX_3060, "+102400 +3200 +16 +8 +16 -16"),
        (sized(BFLOAT, length=100, width=60), RTX_3060_26, "+102400 +102400 +102400 +102400 +3200"),
        (sized(BFLOAT, length=200, width=64), H100, "+8 +8 +204800 +6400 +256 -256"),
        (sized(BFLOAT, length=200, width=64), B200, "+8 +8 +204800 +6400"),
    ],
)
def test_what_the_forward_allocates(call: AttentionCall, target: Target, expected: str) -> None:
    assert forward(call, target) == expected


@pytest.mark.parametrize(
    ("call", "target", "expected"),
    [
        # gradients; product and sums; workspace: 8 heads x 2 tiles of 64 x 64 floats and 16 bytes
        (
            FLOAT,
            RTX_3060,
            "+204800 +204800 +204800 +204800 +3200 +3200 -3200 -204800 +262400 -3200 -262400",
        ),
        (
            replace(BFLOAT, mask_elements=MASK),
            RTX_3060,
            "+102400 +102400 +102400 +3200 +262400 -3200 -262400",
        ),
        # sums of 2 x 4 x 128 floats, accumulator of as many rows of 64
        (BFLOAT, RTX_3060, "+102400 +102400 +102400 +4096 +262144 -262144 -4096"),
        (
            replace(BFLOAT, by_position=False),
            RTX_3060,
            "+102400 +102400 +102400 +102400 +102400 +4096 +262144 -262144 -4096 -102400 -102400",
        ),
        (
            replace(BFLOAT, heads=8, key_heads=2),
            RTX_3060,
            "+204800 +51200 +51200 +8192 +524288 +204800 +204800 -204800 -204800 -524288 -8192",
        ),
        (
            sized(BFLOAT, length=200, width=200),
            B200,
            "+640000 +640000 +640000 +8192 +2097152 -2097152 -8192",
        ),
        (sized(BFLOAT, length=200, width=64), H100, "+204800 +204800 +204800 +416256 -416256"),
        (sized(BFLOAT, length=200, width=64), B200, "+204800 +204800 +204800 +416000 -416000"),
    ],
)
def test_what_the_backward_allocates(call: AttentionCall, target: Target, expected: str) -> None:
    assert backward(call, target) == expected


@pytest.mark.parametrize(
    ("call", "target", "expected"),
    [
        (sized(FLOAT, length=200, width=80), RTX_3060, 1_049_600),
        (sized(FLOAT, length=200, width=80), A100, 1_049_088),
        (sized(FLOAT, length=200, width=160), A100, 1_573_632),
        (sized(HALF, length=200, width=96), RTX_3060, 1_049_088),
        (sized(HALF, length=200, width=96), RTX_5090, 3_146_752),
        (sized(HALF, length=200, width=96), A100, 1_048_832),
        (sized(HALF, length=200, width=128), RTX_3060, 3_146_752),
        (sized(HALF, length=200, width=128), A100, 1_048_832),
        (sized(HALF, length=200, width=128), T4, 1_049_088),
        (sized(HALF, length=200, width=160), A100, 5_767_936),
        (sized(HALF, length=200, width=256), A100, 6_292_480),
        # splits of the keys: 200 over all heads, at most one a tile, at least one
        (AttentionCall(2, False, 1, 1, 1, 200, 4096, 192, 192), RTX_3060, 8_585_312),
        (AttentionCall(2, False, 4, 12, 12, 200, 1024, 192, 192), RTX_3060, 34_607_616),
        (AttentionCall(2, False, 1, 64, 64, 200, 2048, 192, 192), RTX_3060, 37_754_880),
        (AttentionCall(2, False, 26, 8, 8, 200, 300, 192, 192), RTX_3060, 68_177_408),
    ],
)
def test_the_workspace_of_the_memory_efficient_backward(
    call: AttentionCall, target: Target, expected: int
) -> None:
    assert efficient_workspace_bytes(call, target) == expected


def test_heads_whose_elements_do_not_lie_side_by_side_are_computed_from_scores() -> None:
    assert kernel_of(replace(FLOAT, scattered=True), A100) is Kernel.MATH
    assert kernel_of(replace(BFLOAT, scattered=True), H100) is Kernel.MATH


def test_the_layout_of_the_result_is_the_querys_but_for_the_memory_efficient_kernel() -> None:
    by_head = replace(BFLOAT, by_position=False)
    assert lies_by_position(by_head, Kernel.EFFICIENT)
    assert not lies_by_position(by_head, Kernel.FLASH)
    assert lies_by_position(BFLOAT, Kernel.FLASH)
    assert not lies_by_position(sized(BFLOAT, length=100, width=60), Kernel.FLASH)
