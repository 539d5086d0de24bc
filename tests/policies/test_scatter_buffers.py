"""Buffers of backward passes that add rows: what torch 2.12.0 asked its allocator for on an RTX 3060."""

from __future__ import annotations

import pytest

from policies.applied import applied, applied_at, sequence
from xmem.orchestration.kernels.scatter_buffers import (
    AddEmbeddingBackwardBuffers,
    AddIndexBackwardBuffers,
    radix_sort_bytes,
)
from xmem.testing.trace_builder import TraceBuilder


def embedding(table_rows: int, width: int, count: int, item_bytes: int = 4) -> TraceBuilder:
    """An embedding's forward and its backward, as the CPU runs them."""
    return (
        TraceBuilder()
        .operator("aten::embedding", 0, 90, sequence_number=7)
        .operator("aten::index_select", 10, 80, sequence_number=7)
        .alloc(0x10, count * width * item_bytes, 20)
        .backward("EmbeddingBackward0", 100, 200, sequence_number=7)
        .operator(
            "aten::embedding_dense_backward",
            110,
            190,
            input_dims=[[count, width], [count], [], [], []],
            concrete_inputs=["", "", str(table_rows), "-1", "False"],
        )
        .operator("aten::zeros", 111, 150)
        .alloc(0x20, table_rows * width * item_bytes, 120)
        .free(0x10, 210)
    )


@pytest.mark.parametrize(
    ("count", "key_bits", "recorded"),
    [
        (3073, 64, 67_583),
        (4000, 64, 82_943),
        (4096, 64, 84_479),
        (5000, 64, 99_327),
        (10_240, 64, 183_807),
        (20_000, 64, 343_039),
        (10_000, 12, 167_935),  # positions among 4,096 rows
        (2600, 12, 47_615),
        (2300, 12, 1),
        (5000, 9, 87_039),
        (5000, 8, 4607),  # one pass
        (5000, 17, 89_087),
    ],
)
def test_what_cub_sorts_with(count: int, key_bits: int, recorded: int) -> None:
    assert radix_sort_bytes(count, key_bits) == recorded


def test_an_embedding_of_many_indices_sorts_them_and_sums_parts_of_segments() -> None:
    after, change = applied(AddEmbeddingBackwardBuffers(), embedding(1000, 32, 20_000))
    i, sort = 160_000, 343_039  # 8 n; CUB's
    m = 20_000 // 10 + 1000
    allocated = [i, i, i, sort, -sort, -i, 128_000, i, 8, i, -i, 8000, 8000, 8, 8 * m, 4 * m * 32]
    freed = [-4 * m * 32, -8 * m, -8, -8000, -8000, -8, -i, -i, -i]
    assert sequence(after)[1:-1] == [*allocated, *freed]
    assert change.bytes_changed == 5 * i + sort + 16 + 2 * 8000 + 8 * m + 384_000


def test_a_copy_of_the_gradient_in_order_comes_before_all_buffers() -> None:
    copied = 20_000 * 32 * 4
    trace = embedding(1000, 32, 20_000).alloc(0x30, copied, 112).free(0x30, 185)
    after, change = applied(AddEmbeddingBackwardBuffers(), trace)
    assert sequence(after)[1:5] == [copied, 160_000, 160_000, 160_000]
    assert change.blocks_changed == 12


def test_all_buffers_end_before_the_operator_does() -> None:
    after, _ = applied(AddEmbeddingBackwardBuffers(), embedding(1000, 32, 20_000))
    assert after.free_ns[after.block < 0].max() < 190_000


@pytest.mark.parametrize(("count", "blocks"), [(3072, 0), (3073, 12)])
def test_up_to_3072_indices_nothing_is_sorted(count: int, blocks: int) -> None:
    _, change = applied(AddEmbeddingBackwardBuffers(), embedding(1000, 32, count))
    assert change.blocks_changed == blocks


def test_sums_are_float32_for_half_tables_too() -> None:
    after, _ = applied(AddEmbeddingBackwardBuffers(), embedding(1000, 32, 4000, item_bytes=2))
    assert 4 * (400 + 1000) * 32 in after.size_bytes


def test_at_a_point_of_a_fitted_model_there_are_as_many_indices_as_in_a_run_there() -> None:
    policy = AddEmbeddingBackwardBuffers()
    fitted, _ = applied_at(policy, lambda batch: embedding(1000, 32, 500 * batch), 40)
    captured, _ = applied(policy, embedding(1000, 32, 20_000))
    assert sequence(fitted) == sequence(captured)
    assert 4 * (20_000 // 10 + 1000) * 32 in fitted.size_bytes


def test_a_trace_without_shapes_is_left_alone() -> None:
    trace = (
        TraceBuilder()
        .backward("EmbeddingBackward0", 100, 200, sequence_number=7)
        .operator("aten::embedding_dense_backward", 110, 190)
        .alloc(0x20, 128_000, 120)
    )
    assert applied(AddEmbeddingBackwardBuffers(), trace)[1].blocks_changed == 0


def indexing(shape: list[int], values: list[int], accumulate: str = "True") -> TraceBuilder:
    return (
        TraceBuilder()
        .backward("IndexBackward0", 100, 200, sequence_number=7)
        .operator("aten::zeros", 101, 110)
        .alloc(0x10, 524_288, 105)
        .operator(
            "aten::_index_put_impl_",
            120,
            190,
            input_dims=[shape, [], values, [], []],
            concrete_inputs=["", "", "", accumulate, "True"],
        )
    )


def test_the_gradient_of_indexing_sorts_positions() -> None:
    after, change = applied(AddIndexBackwardBuffers(), indexing([4096, 32], [10_000, 32]))
    i, sort = 80_000, 167_935
    assert sequence(after)[:7] == [524_288, i, i, -i, i, i, i]
    assert change.bytes_changed == 5 * i + sort


def test_pairs_of_indices_select_elements() -> None:
    after, _ = applied(AddIndexBackwardBuffers(), indexing([4096, 32], [1000]))
    assert sequence(after)[1:4] == [8000, 8000, -8000]


def test_assigning_without_adding_sorts_nothing() -> None:
    trace = indexing([4096, 32], [10_000, 32], accumulate="False")
    assert applied(AddIndexBackwardBuffers(), trace)[1].blocks_changed == 0
