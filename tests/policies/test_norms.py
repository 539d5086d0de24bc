"""rms_norm: blocks as the CPU of torch 2.13 makes them, and as CUDA of 2.12 asks for them."""

from __future__ import annotations

from policies.applied import applied, sequence, target
from xmem.orchestration.kernels.fused_norms import FuseRmsNorm
from xmem.testing.trace_builder import TraceBuilder

X, ROWS = 196_608, 2048


def rms_norm(*, affine: bool = True) -> TraceBuilder:
    """The composite's forward and its backward, in order."""
    trace = (
        TraceBuilder()
        .operator("aten::rms_norm", 0, 100, sequence_number=5)
        .operator("aten::_fused_rms_norm", 1, 99, sequence_number=5)
        .operator("aten::pow", 2, 9, sequence_number=5)
        .alloc(0x10, X, 3)
        .operator("aten::mean", 10, 19, sequence_number=6)
        .alloc(0x20, ROWS, 11)
        .operator("aten::rsqrt", 20, 29, sequence_number=8)
        .alloc(0x30, ROWS, 21)
        .free(0x10, 29)
        .free(0x20, 29.5)
        .operator("aten::mul", 30, 39, sequence_number=9)
        .alloc(0x40, X, 31)
    )
    if affine:
        trace.operator("aten::mul", 40, 49, sequence_number=10).alloc(0x50, X, 41)
        trace.backward("MulBackward0", 200, 249, sequence_number=10)
        trace.operator("aten::mul", 201, 210).alloc(0x60, X, 202)
        trace.operator("aten::mul", 211, 219).alloc(0x70, X, 212)
        trace.operator("aten::sum", 220, 230).alloc(0x80, 384, 221).free(0x70, 240).free(0x40, 248)
    trace.backward("MulBackward0", 250, 299, sequence_number=9)
    trace.operator("aten::mul", 251, 260).alloc(0x90, X, 252)
    trace.backward("PowBackward0", 300, 349, sequence_number=5)
    trace.operator("aten::mul", 301, 310).alloc(0xA0, X, 302).free(0x90, 340)
    if affine:
        trace.free(0x60, 345)
    return trace.free(0x30, 348).free(0xA0, 500).free(0x40 if not affine else 0x50, 510)


def test_rms_norm_is_one_kernel_that_keeps_a_number_a_row() -> None:
    after, _ = applied(FuseRmsNorm(), rms_norm(), target=target((2, 12)))
    # as recorded of 2.12.0: result, roots; gradients of the input and of the weight, roots freed
    assert sequence(after) == [X, ROWS, X, 384, -ROWS, -X, -X]


def test_without_a_weight_the_normalised_input_is_the_result() -> None:
    after, _ = applied(FuseRmsNorm(), rms_norm(affine=False), target=target((2, 12)))
    assert sequence(after) == [X, ROWS, X, -ROWS, -X, -X]


def test_before_2_8_cuda_runs_the_composite_too() -> None:
    assert applied(FuseRmsNorm(), rms_norm(), target=target((2, 7)))[1].blocks_changed == 0


def test_in_half_precision_the_input_is_kept_and_the_result_is_cast_back() -> None:
    trace = (
        TraceBuilder()
        .operator("aten::add", 0, 9)
        .alloc(0x10, X, 1)
        .operator("aten::rms_norm", 10, 100, sequence_number=5)
        .operator("aten::to", 11, 19, sequence_number=5)
        .alloc(0x20, 2 * X, 12)
        .operator("aten::rsqrt", 20, 29, sequence_number=6)
        .alloc(0x30, ROWS, 21)
        .operator("aten::mul", 30, 39, sequence_number=7)
        .alloc(0x40, 2 * X, 31)
        .operator("aten::type_as", 40, 49, sequence_number=8)
        .alloc(0x50, X, 41)
        .free(0x40, 45)
        .free(0x10, 150)
        .backward("ToCopyBackward0", 200, 249, sequence_number=8)
        .operator("aten::to", 201, 210)
        .alloc(0x60, 2 * X, 202)
        .backward("ToCopyBackward0", 250, 299, sequence_number=5)
        .operator("aten::to", 251, 260)
        .alloc(0x70, X, 252)
        .free(0x60, 270)
        .free(0x20, 280)
        .free(0x30, 281)
        .free(0x70, 290)  # into the gradient of what else takes the input
        .free(0x50, 500)
    )
    after, _ = applied(FuseRmsNorm(), trace, target=target((2, 12)))
    # input, result, roots; the gradient of the input is made while all are there
    assert sequence(after)[:4] == [X, X, ROWS, X]
