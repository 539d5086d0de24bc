"""Buffers for CUDA's sorts and sums where a backward pass adds many rows into few: embeddings and indexing.

The sizes were seen in the allocator's history of torch 2.6.0 and 2.12.0 on the phantom GPU, where PyTorch and
CUB compute them as they do on a real one.
"""

from __future__ import annotations

import math

import numpy as np

from xmem.orchestration.transients import ELSEWHERE, AddedBlocks, first_blocks
from xmem.run.recorded import Context
from xmem.run.workload import Workload

_EMBEDDING_BACKWARD = "aten::embedding_dense_backward"
_INDEX_PUT = "aten::_index_put_impl_"
_INDEX_BYTES = 8
_SUM_BYTES = 4
_ROWS_PER_PARTIAL_SUM = 10
_MOST_UNSORTED_INDICES = 3072

# Onesweep of CUB, for pairs of 64-bit keys and values on compute capability 8.6.
_SORT_TILE = 3840
_LARGEST_SINGLE_TILE = 2304  # 2,300 fit, 2,600 do not
_DIGITS = 256
_ALIGNMENT = 256


def radix_sort_bytes(count: int, key_bits: int) -> int:
    """Return the memory that CUB needs to sort pairs of 64-bit keys and values: a second copy of both, and
    counters.

    A counter for each digit and pass, and one for each digit and tile; one pass needs no copies, and an input
    that one tile holds a single byte. The same on compute capability 8.0.
    """
    if count <= _LARGEST_SINGLE_TILE:
        return 1
    passes = -(-key_bits // 8)
    copies = 2 * (-(-count * _INDEX_BYTES // _ALIGNMENT) * _ALIGNMENT) if passes > 1 else 0
    tiles = -(-count // _SORT_TILE)
    return copies + passes * _DIGITS * 8 + tiles * _DIGITS * 4 + 511


class AddEmbeddingBackwardBuffers:
    """The dense gradient of an embedding of more than 3072 indices sorts them, and sums parts of segments.

    With n indices of 8 bytes into V rows of d: sorted indices, their origins and a range, 8 n each; CUB's
    temporary memory (`radix_sort_bytes`); after the gradient itself counts and offsets, 8 n, and sizes of
    segments, 2 x 8 min(n, V); starts of m = n / 10 + min(n, V) partial segments, 8 m, and their sums in
    float32, 4 m d. (cpu_vs_cuda_memory, section 7.4; `Embedding.cu`, `EmbeddingBackwardKernel.cu`, 2.4 to
    2.12; scans of a KiB are left out.)
    """

    name = "add_embedding_backward_buffers"
    inputs_of = frozenset({_EMBEDDING_BACKWARD})
    description = "the gradient of an embedding of many indices takes buffers to sort them and to sum rows"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Add the buffers around the gradient of each embedding."""
        operators = context.operators
        rows = np.flatnonzero(operators.rows_named({_EMBEDDING_BACKWARD})).astype(np.int32)
        if len(rows) == 0:
            return workload
        blocks = AddedBlocks(workload)
        gradients = first_blocks(workload, operators, rows, lasting=True)
        for row, gradient in zip(rows, gradients, strict=True):
            inputs = operators.inputs(int(row))
            if inputs is None or gradient < 0 or not inputs.shape(0) or not inputs.shape(1):
                continue
            width, table_rows = inputs.shape(0)[-1], inputs.integer(2)
            count = math.prod(inputs.shape(1))
            if table_rows is None or count <= _MOST_UNSORTED_INDICES:
                continue
            at_ns = int(workload.alloc_ns[gradient])
            indices, segments = count * _INDEX_BYTES, min(count, table_rows)
            partials = count // _ROWS_PER_PARTIAL_SUM + segments
            before = [
                ("sorted", indices),
                ("origins", indices),
                ("range", indices),
                ("sort", radix_sort_bytes(count, 64)),
                ("sort", 0),
                ("range", 0),
            ]
            after = [
                ("counts", indices),
                ("segments", 8),
                ("offsets", indices),
                ("offsets", 0),
                ("sizes", segments * _INDEX_BYTES),
                ("starts", segments * _INDEX_BYTES),
                ("number", 8),
                ("partials", partials * _INDEX_BYTES),
                ("sums", partials * width * _SUM_BYTES),
            ]
            blocks.add_in_order(gradient, at_ns - len(before), [*before, ELSEWHERE, *after])
        return blocks.added()


class AddIndexBackwardBuffers:
    """The gradient of indexing adds rows into a zeroed tensor: CUDA sorts the n positions first.

    Four arrays of 8 n, and CUB's temporary memory with keys of as many bits as the number of rows has
    (`index_put_with_sort_kernel`, `Indexing.cu`; section 7.5). The profiler does not record the shapes of
    indices: n is the number of rows of the tensor that the values have.
    """

    name = "add_index_backward_buffers"
    inputs_of = frozenset({_INDEX_PUT})
    description = "the gradient of indexing takes buffers to sort positions"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Add the buffers to every accumulating `index_put`."""
        operators = context.operators
        rows = np.flatnonzero(operators.rows_named({_INDEX_PUT})).astype(np.int32)
        rows = rows[operators.in_backward(rows)]
        if len(rows) == 0:
            return workload
        blocks = AddedBlocks(workload)
        for row in rows:
            inputs = operators.inputs(int(row))
            if inputs is None or inputs.value(3) != "True":  # accumulate
                continue
            indexed = _indexed(inputs.shape(0), inputs.shape(2))
            if indexed is None:
                continue
            count, table_rows = indexed
            begin_ns = int(operators.events.begin_ns[row])
            like = int(np.searchsorted(workload.alloc_ns, begin_ns)) - 1  # the tensor that is added into
            positions = count * _INDEX_BYTES
            steps = [
                ("linear", positions),
                ("product", positions),
                ("product", 0),
                *((name, positions) for name in ("sorted", "range", "origins")),
                ("sort", radix_sort_bytes(count, (table_rows - 1).bit_length())),
                ("sort", 0),
            ]
            if like >= 0:
                blocks.add_in_order(like, begin_ns, steps)
        return blocks.added()


def _indexed(shape: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, int] | None:
    """Return how many rows the values and the tensor have, by the fewest leading dimensions that are
    indexed."""
    for leading in range(1, len(shape) + 1):
        row = shape[leading:]
        if values[len(values) - len(row) :] == row and len(values) >= len(row):
            return math.prod(values[: len(values) - len(row)]), math.prod(shape[:leading])
    return None
