"""Each policy on a tiny trace: what it changes, by how much, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

from xmem.attribution import Category, attribute
from xmem.blocks import CPU, CUDA, NEVER, pair_blocks
from xmem.orchestration.dropout import ResizeDropoutMasks
from xmem.orchestration.host_memory import AddMemoryBeforeTrace, AddTensorsBeforeTrace, DropHostMemory
from xmem.orchestration.lifetimes import (
    BatchDataPerIteration,
    GradientsUntilZeroGrad,
    PermanentOptimizerState,
    PersistentParameters,
    RecordedActivations,
)
from xmem.orchestration.onednn import DropOneDnnTemporaries
from xmem.orchestration.policy import Context, Policy, PolicyChange, Target, apply_policies
from xmem.orchestration.workload import Workload, workload_of
from xmem.orchestration.workspaces import AddCublasWorkspaces, cublas_workspace_bytes
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace import read_trace

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
    )
    _, change, after = applied(AddCublasWorkspaces(), trace)
    workspaces = after.select(after.category == Category.WORKSPACE)
    assert workspaces.alloc_ns.tolist() == [12_000, 65_000]
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
