"""Workloads: rows that are chosen and joined, and columns of one value that take no memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.run.workload import COLUMNS, Workload, concatenated, made_by_policy


def blocks(alloc_ns: list[int], **columns: NDArray[np.int32]) -> Workload:
    count = len(alloc_ns)
    return made_by_policy(
        count,
        block=np.arange(count, dtype=np.int32),
        size_bytes=np.full(count, 512),
        alloc_ns=np.array(alloc_ns),
        free_ns=np.array(alloc_ns) + 10,
        **columns,
    )


def bytes_of(workload: Workload) -> int:
    """The memory of its columns; a column of one value has one entry."""
    return sum(
        column.nbytes if column.strides != (0,) else column.itemsize for column in columns_of(workload)
    )


def columns_of(workload: Workload) -> list[NDArray[np.generic]]:
    return [getattr(workload, name) for name in COLUMNS]


def test_blocks_of_several_parts_are_in_order_of_allocation_and_the_earlier_part_goes_first() -> None:
    joined = concatenated([blocks([5, 20, 20]), blocks([1, 20, 30], iteration=np.array([7, 8, 9]))])
    assert joined.alloc_ns.tolist() == [1, 5, 20, 20, 20, 30]
    assert joined.block.tolist() == [0, 0, 1, 2, 1, 2]
    assert joined.iteration.tolist() == [7, -1, -1, -1, 8, 9]
    assert joined.free_ns.tolist() == [11, 15, 30, 30, 30, 40]


def test_every_column_of_a_join_is_that_of_a_plain_sort() -> None:
    random = np.random.default_rng(1)
    parts = [
        blocks(random.integers(0, 50, count).tolist(), stream=random.integers(0, same, count))
        for count, same in ((40, 1), (0, 1), (25, 3), (1, 1))
    ]
    joined = concatenated(parts)
    order = np.argsort(np.concatenate([part.alloc_ns for part in parts]), kind="stable")
    for name, column in zip(COLUMNS, columns_of(joined), strict=True):
        expected = np.concatenate([getattr(part, name) for part in parts])[order]
        assert column.dtype == expected.dtype, name
        assert np.array_equal(column, expected), name


def test_columns_of_one_value_stay_one_value() -> None:
    workload = blocks(list(range(1000)))
    joined = concatenated([blocks([3]), workload])
    for name in ("stream", "mempool", "choice", "restores", "waits"):
        assert getattr(joined, name).strides == (0,), name
    some = joined.select(joined.alloc_ns > 500)
    assert len(some) == 499
    assert some.mempool.tolist() == [0] * 499
    assert bytes_of(some) < 499 * 40


def test_one_other_value_makes_a_column_whole() -> None:
    joined = concatenated([blocks([1, 2], mempool=np.array([0, 0])), blocks([3], mempool=np.array([4]))])
    assert joined.mempool.tolist() == [0, 0, 4]


def test_nothing_is_copied_where_nothing_changes() -> None:
    workload = blocks([1, 2, 3])
    assert workload.select(np.ones(3, np.bool_)) is workload
    assert concatenated([workload, blocks([])]) is workload
    assert workload.select(np.array([2, 0])).alloc_ns.tolist() == [3, 1]
    assert concatenated([blocks([9, 4])]).alloc_ns.tolist() == [4, 9]
    assert len(concatenated([blocks([])])) == 0
