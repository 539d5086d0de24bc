"""Autocast: a norm and a softmax in half precision as the CPU makes them, and in float32 as CUDA does."""

from __future__ import annotations

import pytest

from policies.applied import applied, sequence
from xmem.orchestration.matmul.autocast_copies import AddAutocastCopies
from xmem.testing.trace_builder import TraceBuilder

B = 2_097_152  # of a result in half precision
HALF = ["c10::BFloat16"]


def cast_product() -> TraceBuilder:
    """A linear layer that casts what it is given, as under autocast."""
    return TraceBuilder().operator("aten::linear", 0, 9).operator("aten::to", 1, 2)


def layer_norm(trace: TraceBuilder, types: list[str]) -> TraceBuilder:
    return (
        trace.operator("aten::layer_norm", 10, 20, sequence_number=4, input_types=types)
        .operator("aten::native_layer_norm", 11, 19, sequence_number=4, input_types=types)
        .alloc(0x10, B, 12)
        .alloc(0x20, 512, 13)
        .backward("NativeLayerNormBackward0", 50, 60, sequence_number=4)
        .operator("aten::native_layer_norm_backward", 51, 59)
        .alloc(0x30, B, 52)
        .free(0x20, 70)
        .free(0x10, 72)
        .free(0x30, 80)
    )


def test_a_norm_keeps_its_input_in_float32_and_casts_its_result_back() -> None:
    after, change = applied(AddAutocastCopies(), layer_norm(cast_product(), HALF))
    forward = [2 * B, 2 * B, 512, B, -2 * B]  # copy, result and its statistics, cast; the result goes
    backward = [2 * B, 2 * B, -2 * B, -2 * B, B, -2 * B]  # gradient, gradient of the input; the copy goes
    assert sequence(after)[:5] == forward
    assert sorted(sequence(after)[5:11]) == sorted(backward)
    assert sequence(after)[11:] == [-512, -B, -B]
    assert change.bytes_changed == 4 * 2 * B


def test_a_softmax_keeps_its_result_in_float32() -> None:
    trace = (
        cast_product()
        .operator("aten::softmax", 10, 20, sequence_number=7, input_types=HALF)
        .operator("aten::_softmax", 11, 19, sequence_number=7, input_types=HALF)
        .alloc(0x10, B, 12)
        .backward("SoftmaxBackward0", 50, 60, sequence_number=7)
        .operator("aten::_softmax_backward_data", 51, 59)
        .alloc(0x30, B, 52)
        .free(0x10, 70)
        .free(0x30, 80)
    )
    after, change = applied(AddAutocastCopies(), trace)
    assert change.bytes_changed == 4 * 2 * B
    # copy; result; the copy goes and the cast comes at the end of the call, in either order
    assert sequence(after)[:2] == [2 * B, 2 * B]
    assert sorted(sequence(after)[2:4]) == [-2 * B, B]
    assert (
        sequence(after)[4] == 2 * B
    )  # the gradient that comes in: the result is there until the backward's end


@pytest.mark.parametrize(
    "trace",
    [
        layer_norm(TraceBuilder(), HALF),  # a model in half precision, without autocast
        layer_norm(cast_product(), ["float"]),
    ],
)
def test_what_is_not_under_autocast_stays(trace: TraceBuilder) -> None:
    assert applied(AddAutocastCopies(), trace)[1].blocks_changed == 0
