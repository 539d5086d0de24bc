"""Each policy on a tiny trace: what it changes, by how much, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

from xmem.orchestration.kernels.converted_operands import DropConvertedOperands
from xmem.orchestration.kernels.cpu_kernels import DropCpuKernelTemporaries
from xmem.orchestration.kernels.dropout_masks import ResizeDropoutMasks
from xmem.orchestration.kernels.gradient_order import OrderBatchNormGradients
from xmem.orchestration.kernels.onednn_temporaries import DropOneDnnTemporaries
from xmem.orchestration.kernels.softmax_products import AddSoftmaxBackwardProducts
from xmem.orchestration.lifetimes.host_blocks import (
    AddMemoryBeforeTrace,
    AddTensorsBeforeTrace,
    DropHostMemory,
)
from xmem.orchestration.lifetimes.lifetime_rules import (
    BatchDataPerIteration,
    GradientsUntilZeroGrad,
    PermanentOptimizerState,
    PersistentParameters,
    RecordedActivations,
)
from xmem.orchestration.matmul.cublas_workspaces import AddCublasWorkspaces, cublas_workspace_bytes
from xmem.orchestration.policy import Policy, PolicyChange, apply_policies
from xmem.run.recorded import Context
from xmem.run.target import Target
from xmem.run.workload import Workload, workload_of
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.attribution import Category, attribute
from xmem.trace.blocks import CPU, CUDA, NEVER, pair_blocks
from xmem.trace.trace import read_trace

AMPERE = Target(compute_capability=(8, 6), torch_version=(2, 13))


def applied(
    policy: Policy, trace: TraceBuilder, *, device: tuple[int, int] = (CPU, -1), target: Target = AMPERE
) -> tuple[Workload, PolicyChange, Workload]:
    """The workload before, what changed, and the workload after."""
    read = read_trace(trace.bytes())
    blocks = pair_blocks(read)
    attribution = attribute(read, blocks)
    before = workload_of(blocks, attribution, *device)
    after, (change,) = apply_policies([policy], before, Context(read, blocks, attribution, target=target))
    return before, change, after


def captured(requests: int = 1) -> TraceBuilder:
    return TraceBuilder().with_metadata(device_requests=requests)


def test_host_spans_and_what_came_before_the_first_request_are_host_memory() -> None:
    trace = captured().host(0, 10).alloc(0x10, 100, 5).alloc(0x20, 200, 15).free(0x99, 20, size=300)
    before, change, after = applied(DropHostMemory(), trace)
    assert sorted(before.size_bytes) == [100, 200, 300]
    assert after.size_bytes.tolist() == [200]
    assert (change.blocks_changed, change.bytes_changed) == (2, -400)


def test_a_script_that_never_asks_for_a_gpu_keeps_all_its_tensors() -> None:
    trace = captured(requests=0).host(0, 10).alloc(0x10, 100, 5)
    _, change, after = applied(DropHostMemory(), trace)
    assert after.size_bytes.tolist() == [100]
    assert change.blocks_changed == 0


def test_a_foreign_trace_loses_what_loading_used_on_the_way_and_keeps_the_batch() -> None:
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    trace = (
        TraceBuilder()
        .annotation(loading, 0, 10)
        .alloc(0x10, 100, 2)
        .free(0x10, 4)
        .alloc(0x20, 200, 5)
        .free(0x20, 90)
    )
    _, change, after = applied(DropHostMemory(), trace)
    assert after.size_bytes.tolist() == [200]
    assert change.bytes_changed == -100


def test_parameters_made_before_the_recording_are_added_once() -> None:
    trace = captured(requests=0).alloc(0x10, 64, 5)
    trace.tensor("parameter", "Net.weight", 0x900, 4096, at_us=6)
    trace.tensor("parameter", "Net.weight", 0x900, 4096, at_us=60)
    trace.tensor("parameter", "Net.bias", 0x10, 64, at_us=6)
    trace.tensor("gradient", "Net.weight", 0x800, 4096, at_us=6)
    _, change, after = applied(AddTensorsBeforeTrace(), trace)
    assert after.size_bytes.tolist() == [4096, 64]
    assert after.category[0] == Category.PARAMETER
    assert after.free_ns[0] == NEVER
    assert change.blocks_changed == 1


def test_a_gpu_trace_tells_what_was_allocated_before_it_began() -> None:
    trace = TraceBuilder()
    trace.memory(
        1000, 1, address=0x10, device_type=1, device_index=0, total_allocated=51_000, total_reserved=2 << 20
    )
    trace.memory(
        -7000, 2, address=0x20, device_type=1, device_index=0, total_allocated=44_000, total_reserved=2 << 20
    )
    _, change, after = applied(AddMemoryBeforeTrace(), trace, device=(CUDA, 0))
    assert sorted(after.size_bytes) == [
        1000,
        7000,
        43_000,
    ]  # 51,000 = 1,000 + 7,000 that is freed later + the rest
    assert change.bytes_changed == 43_000


@pytest.mark.parametrize(
    "kernel",
    ["aten::mkldnn_convolution", "aten::convolution_backward", "aten::addmm"],
)
def test_reorders_that_die_inside_their_kernel_are_dropped_and_the_output_stays(kernel: str) -> None:
    trace = (
        TraceBuilder()
        .operator(kernel, 0, 50)
        .alloc(0x10, 1000, 5)
        .free(0x10, 20)
        .operator("aten::empty", 21, 30)
        .alloc(0x20, 500, 25)
        .alloc(0x30, 700, 40)
        .free(0x30, 60)
    )
    _, change, after = applied(DropOneDnnTemporaries(), trace)
    assert after.size_bytes.tolist() == [500, 700]
    assert (change.blocks_changed, change.bytes_changed) == (1, -1000)


def test_only_mask_and_result_of_native_dropout_are_left() -> None:
    trace = (
        TraceBuilder()
        .operator("aten::native_dropout", 0, 50)
        .operator("aten::empty_like", 1, 9)
        .alloc(0x10, 1000, 5)
        .operator("aten::bernoulli_", 10, 20)
        .alloc(0x20, 4000, 11)
        .free(0x20, 19)
        .operator("aten::mul", 21, 40)
        .operator("aten::to", 22, 24)
        .alloc(0x30, 4000, 23)
        .alloc(0x40, 4000, 25)
        .free(0x30, 39)
        .free(0x10, 90)
        .free(0x40, 91)
    )
    _, change, after = applied(DropCpuKernelTemporaries(), trace)
    assert after.size_bytes.tolist() == [1000, 4000]
    assert after.alloc_ns.tolist() == [5000, 25_000]
    assert (change.blocks_changed, change.bytes_changed) == (2, -8000)


def test_a_gradient_made_contiguous_for_a_norm_is_copied_on_both_devices() -> None:
    trace = (
        TraceBuilder()
        .operator("aten::native_layer_norm_backward", 0, 50)
        .operator("aten::contiguous", 1, 9)
        .operator("aten::clone", 2, 8)
        .alloc(0x10, 1000, 5)
        .operator("aten::resize_", 10, 12)
        .alloc(0x20, 64, 11)
        .free(0x20, 40)
        .free(0x10, 41)
    )
    _, _, after = applied(DropCpuKernelTemporaries(), trace)
    assert after.size_bytes.tolist() == [1000]


def test_numbers_and_converted_operands_of_arithmetic_are_dropped_and_results_stay() -> None:
    trace = (
        TraceBuilder()
        .alloc(0x10, 8, 1)  # the number of x * 2.0, saved for the backward
        .operator("aten::mul", 2, 20)
        .operator("aten::to", 3, 6)
        .operator("aten::_to_copy", 3, 6)
        .alloc(0x20, 4, 4)
        .alloc(0x30, 4000, 7)
        .free(0x20, 15)
        .operator("aten::_foreach_mul_", 30, 50)
        .operator("aten::mul_", 31, 40)
        .alloc(0x40, 8, 32)
        .free(0x40, 39)
        .operator("aten::add", 60, 80)
        .operator("aten::to", 61, 65)
        .alloc(0x50, 4000, 62)  # integers, to be added to floats
        .alloc(0x60, 4000, 70)
        .free(0x50, 79)
    )
    _, change, after = applied(DropConvertedOperands(), trace)
    assert after.alloc_ns.tolist() == [7000, 70_000]
    assert change.bytes_changed == -(8 + 4 + 8 + 4000)


def test_a_scalar_result_and_a_conversion_that_the_script_asked_for_are_kept() -> None:
    trace = (
        TraceBuilder()
        .operator("aten::mean", 0, 10)
        .alloc(0x10, 4, 5)
        .free(0x10, 95)
        .operator("aten::mul", 20, 40)
        .alloc(0x20, 4, 25)
        .free(0x20, 96)
        .operator("aten::to", 50, 60)
        .alloc(0x30, 4000, 55)
        .free(0x30, 58)
    )
    _, change, _ = applied(DropConvertedOperands(), trace)
    assert change.blocks_changed == 0


def test_a_parameter_of_one_element_is_no_number() -> None:
    trace = captured().alloc(0x10, 4, 1).alloc(0x20, 4, 2).operator("aten::mul", 4, 5)
    trace.tensor("parameter", "Net.bias", 0x10, 4, at_us=3)
    _, _, after = applied(DropConvertedOperands(), trace)
    assert after.alloc_ns.tolist() == [1000]


def test_batch_norm_makes_the_gradient_of_its_input_first() -> None:
    trace = (
        TraceBuilder()
        .operator("aten::native_batch_norm_backward", 0, 50)
        .alloc(0x10, 4000, 5)
        .free(0x10, 40)
        .alloc(0x20, 64, 10)
        .alloc(0x30, 64, 15)
        .alloc(0x40, 4000, 20)
        .free(0x40, 70)
        .operator("aten::native_batch_norm_backward", 100, 150)
        .alloc(0x50, 64, 110)
        .alloc(0x60, 8000, 120)
    )
    _, change, after = applied(OrderBatchNormGradients(), trace)
    by_time = sorted(zip(after.alloc_ns.tolist(), after.size_bytes.tolist(), strict=True))
    assert by_time == [
        (5000, 4000), (10_000, 4000), (15_000, 64), (20_000, 64), (110_000, 8000), (120_000, 64),
    ]  # fmt: skip
    assert (np.diff(after.alloc_ns) >= 0).all()
    assert change.bytes_changed == 0


def test_a_softmax_backward_holds_a_product_until_it_returns() -> None:
    trace = (
        TraceBuilder()
        .operator("aten::_softmax_backward_data", 0, 50)
        .alloc(0x10, 4000, 5)
        .free(0x10, 90)
        .operator("aten::_log_softmax_backward_data", 100, 150)
        .alloc(0x20, 8000, 105)
        .free(0x20, 190)
    )
    _, change, after = applied(AddSoftmaxBackwardProducts(), trace)
    lifetimes = list(zip(after.size_bytes, after.alloc_ns, after.free_ns, strict=True))
    assert lifetimes == [(4000, 5000, 90_000), (4000, 5000, 50_000), (8000, 105_000, 190_000)]
    assert after.block.tolist() == [0, -1, 1]
    assert (change.blocks_changed, change.bytes_changed) == (1, 4000)


@pytest.mark.parametrize(
    ("dtype", "noise", "mask"), [("float", 4096, 1024), ("c10::BFloat16", 2048, 1024), ("double", 8192, 1024)]
)
def test_dropout_noise_becomes_a_mask_of_a_byte_an_element(dtype: str, noise: int, mask: int) -> None:
    trace = (
        TraceBuilder()
        .operator("aten::dropout", 0, 50, input_types=[dtype, "Scalar", "Scalar"])
        .operator("aten::empty_like", 1, 9)
        .operator("aten::empty", 2, 8)
        .alloc(0x10, noise, 5)
        .operator("aten::bernoulli_", 10, 20)
        .operator("aten::mul", 30, 40)
        .alloc(0x20, noise, 35)
        .free(0x10, 90)
        .free(0x20, 91)
    )
    _, change, after = applied(ResizeDropoutMasks(), trace)
    assert after.size_bytes.tolist() == [mask, noise]
    assert (change.blocks_changed, change.bytes_changed) == (1, mask - noise)


def test_an_empty_like_elsewhere_is_no_dropout_mask() -> None:
    trace = (
        TraceBuilder()
        .operator("aten::dropout", 0, 50, input_types=["float"])
        .operator("aten::mul", 10, 40)
        .operator("aten::empty_like", 12, 20)
        .alloc(0x10, 4096, 15)
        .operator("aten::empty_like", 60, 70)
        .alloc(0x20, 4096, 65)
    )
    _, change, _ = applied(ResizeDropoutMasks(), trace)
    assert change.blocks_changed == 0


@pytest.mark.parametrize(
    ("capability", "version", "expected"),
    [
        ((8, 6), (2, 13), 8_519_680),
        ((9, 0), (2, 6), 33_554_432),
        ((10, 0), (2, 11), 8_519_680),
        ((10, 0), (2, 13), 33_554_432),
        ((12, 0), (2, 13), 33_554_432),
        ((7, 5), (2, 13), 8_519_680),
    ],
)
def test_cublas_workspace_by_architecture_and_version(
    capability: tuple[int, int], version: tuple[int, int], expected: int
) -> None:
    assert cublas_workspace_bytes(Target(capability, version)) == expected


def test_forward_and_backward_take_a_cublas_workspace_each_at_their_first_product() -> None:
    trace = (
        TraceBuilder()
        .host(0, 9)
        .operator("aten::mm", 1, 8)  # on the host: no workspace
        .operator("aten::linear", 10, 30)
        .operator("aten::addmm", 12, 28)
        .alloc(0x10, 64, 20)
        .operator("aten::addmm", 40, 50)
        .backward("AddmmBackward0", 60, 80, sequence_number=0)
        .operator("aten::mm", 65, 75)
        .alloc(0x20, 64, 70)
        .free(0x10, 90)
        .free(0x20, 91)
    )
    _, change, after = applied(AddCublasWorkspaces(), trace)
    workspaces = after.select(after.category == Category.WORKSPACE)
    assert workspaces.alloc_ns.tolist() == [20_001, 70_001]  # each after the result of its product
    assert workspaces.free_ns.tolist() == [NEVER, NEVER]
    assert (change.blocks_changed, change.bytes_changed) == (2, 2 * 8_519_680)


def test_without_a_matrix_product_there_is_no_workspace() -> None:
    _, change, _ = applied(
        AddCublasWorkspaces(), TraceBuilder().operator("aten::relu", 0, 9).alloc(0x10, 64, 5)
    )
    assert change.blocks_changed == 0


class TestLostFrees:
    """A block whose address is allocated again without a free: where each category ends."""

    @staticmethod
    def lost(role: str) -> TraceBuilder:
        return (
            TraceBuilder()
            .tensor(role, "Net.x", 0x10, 64, at_us=6)
            .alloc(0x10, 64, 5)
            .annotation("Optimizer.zero_grad#SGD.zero_grad", 30, 35)
            .annotation("Optimizer.step#SGD.step", 50, 60)
            .alloc(0x10, 64, 80)
        )

    @pytest.mark.parametrize(
        ("policy", "role", "ends_ns"),
        [
            (PersistentParameters(), "parameter", NEVER),
            (PersistentParameters(), "buffer", NEVER),
            (PermanentOptimizerState(), "optimizer_state", NEVER),
            (GradientsUntilZeroGrad(), "gradient", 30_000),
            (BatchDataPerIteration(), "input", 60_000),
            (RecordedActivations(), "gradient", 80_000),
        ],
    )
    def test_ends_where_the_rule_says(self, policy: Policy, role: str, ends_ns: int) -> None:
        _, _, after = applied(policy, self.lost(role))
        assert after.free_ns[0] == ends_ns

    @pytest.mark.parametrize(
        "policy",
        [
            PersistentParameters(),
            PermanentOptimizerState(),
            BatchDataPerIteration(),
            GradientsUntilZeroGrad(),
        ],
    )
    def test_a_recorded_free_is_the_truth(self, policy: Policy) -> None:
        trace = (
            TraceBuilder().tensor("parameter", "Net.x", 0x10, 64, at_us=6).alloc(0x10, 64, 5).free(0x10, 20)
        )
        before, change, after = applied(policy, trace)
        np.testing.assert_array_equal(after.free_ns, before.free_ns)
        assert change.blocks_changed == 0
