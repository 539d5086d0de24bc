"""Buffers of sums: what torch 2.6.0 asked its allocator for on an RTX 3060 and on an A100."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.applied import AMPERE, applied, applied_at, sequence
from xmem.devices.gpus import find_device
from xmem.orchestration.kernels.reductions import (
    AddReductionBuffers,
    reduction_of,
    staging_bytes,
    staging_on,
)
from xmem.run.inputs import Inputs
from xmem.testing.trace_builder import TraceBuilder

RTX_3060, A100 = (28, 1536), (108, 2048)


def contiguous(shape: list[int]) -> list[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides


def summed(shape: list[int], axes: str) -> Inputs:
    return Inputs([shape, [], []], [contiguous(shape), [], []], ["", axes, "False"])


@pytest.mark.parametrize(
    ("shape", "axes", "gpu", "recorded"),
    [
        ([4096, 1024], "[0]", RTX_3060, (22_020_096, 32)),
        ([2048, 256], "[0]", RTX_3060, (4_194_304, 8)),
        ([8192, 768], "[0]", RTX_3060, (22_020_096, 24)),
        ([2560, 3072], "[0]", RTX_3060, (22_020_096, 96)),
        ([400_000, 10], "[0]", RTX_3060, (26_880, 8)),
        ([4096, 1024], "", RTX_3060, (336, 4)),
        ([512, 64], "[0]", RTX_3060, (0, 0)),
        ([4096, 1024], "[1]", RTX_3060, (0, 0)),
        ([640, 50_257], "[0]", RTX_3060, (0, 0)),
        ([4096, 1024], "[0]", A100, (33_554_432, 32)),
        ([8192, 768], "[0]", A100, (50_331_648, 24)),
        ([2560, 3072], "[0]", A100, (62_914_560, 96)),
        ([16_384, 768], "[0]", A100, (100_663_296, 24)),
    ],
)
def test_staging_as_recorded(
    shape: list[int], axes: str, gpu: tuple[int, int], recorded: tuple[int, int]
) -> None:
    reduction = reduction_of(summed(shape, axes))
    assert reduction is not None
    assert staging_bytes(reduction, *gpu) == recorded


def test_leading_axes_are_summed_as_one() -> None:
    assert reduction_of(summed([20, 512, 768], "[0, 1]")) == reduction_of(summed([10_240, 768], "[0]"))


def test_the_axes_of_a_norm_come_after_its_order() -> None:
    norm = Inputs([[20_000, 512], [], []], [[512, 1], [], []], ["", "2", "[-2]"])
    reduction = reduction_of(norm, 2)
    assert reduction is not None
    assert staging_bytes(reduction, 82, 1536)[0] == 64_487_424  # 2.12.0, an RTX 3090


@pytest.mark.parametrize(
    ("axes", "dtype", "staging"),
    [((0,), "float32", (22_020_096, 32)), ((), "bfloat16", (336, 4)), ((-2,), "int64", (0, 0))],
)
def test_staging_of_a_tensor_on_a_gpu(axes: tuple[int, ...], dtype: str, staging: tuple[int, int]) -> None:
    assert staging_on(find_device("rtx-3060"), (4096, 1024), axes, dtype) == staging


@pytest.mark.parametrize("shape", [[], [0, 4]])
def test_nothing_to_sum(shape: list[int]) -> None:
    assert reduction_of(summed(shape, "[0]") if shape else Inputs([[]], [[]], [])) is None


def test_a_mean_takes_buffers_as_a_sum_does() -> None:
    mean = (
        TraceBuilder()
        .operator(
            "aten::mean",
            110,
            150,
            input_types=["float", "ScalarList", "Scalar"],
            input_dims=[[4096, 1024], [], []],
            input_strides=[[1024, 1], [], []],
            concrete_inputs=["", "[0]", "False"],
        )
        .alloc(0x20, 4096, 120)
    )
    rtx_3060 = replace(AMPERE, gpu="rtx-3060", device=find_device("rtx-3060"))
    after, _ = applied(AddReductionBuffers(), mean, target=rtx_3060)
    assert sequence(after)[:3] == [4096, 22_020_096, 32]


def bias_gradient(rows: int = 4096) -> TraceBuilder:
    return (
        TraceBuilder()
        .operator("aten::addmm", 0, 50, sequence_number=4)
        .alloc(0x10, rows * 1024 * 4, 20)
        .backward("AddmmBackward0", 100, 200, sequence_number=4)
        .operator(
            "aten::sum",
            110,
            150,
            input_types=["float", "ScalarList", "Scalar"],
            input_dims=[[rows, 1024], [], []],
            input_strides=[[1024, 1], [], []],
            concrete_inputs=["", "[0]", "True"],
        )
        .alloc(0x20, 4096, 120)
        .free(0x10, 210)
    )


def test_the_gradient_of_a_bias_takes_its_buffers_after_its_result() -> None:
    rtx_3060 = replace(AMPERE, gpu="rtx-3060", device=find_device("rtx-3060"))
    after, change = applied(AddReductionBuffers(), bias_gradient(), target=rtx_3060)
    assert sequence(after)[1:6] == [4096, 22_020_096, 32, -32, -22_020_096]
    assert (change.blocks_changed, change.bytes_changed) == (2, 22_020_128)


def test_at_a_point_of_a_fitted_model_it_is_the_sum_that_a_run_there_makes() -> None:
    rtx_3060 = replace(AMPERE, gpu="rtx-3060", device=find_device("rtx-3060"))
    policy = AddReductionBuffers()
    fitted, _ = applied_at(policy, lambda batch: bias_gradient(512 * batch), 512, target=rtx_3060)
    captured, change = applied(policy, bias_gradient(512 * 512), target=rtx_3060)
    assert sequence(fitted) == sequence(captured)
    many = reduction_of(summed([512 * 512, 1024], "[0]"))
    assert many is not None
    assert change.bytes_changed == sum(staging_bytes(many, *RTX_3060)) > 0
