"""How long a library's kernel takes for a product of matrices, as far as its choice depends on it.

cuBLAS and cuDNN take the kernel that they expect to be fastest. The constants choose well on tables of
recorded products of five GPUs, none of which the occupancy figures are judged on
(``bench/occupancy/products.py``).
"""

from __future__ import annotations

import math
import re

from xmem.occupancy.grids import is_persistent, tile_of
from xmem.occupancy.problems import Product

_BYTES_PER_NS = 42.0  # that a multiprocessor reads from the L2 cache
_LATENCY_NS = 500.0  # of a read, paid each time that the pipeline is refilled
_SECOND_KERNEL_NS = 2000.0  # such as the one that adds up sums that were split

_DEPTH = re.compile(r"_(\d+)x(\d)(?=_|$)")
_USUAL_DEPTH = 64.0
_HOPPER_DEPTH = 384.0  # nearly all of the shared memory is in flight


def expected_ns(product: Product, kernel: str, blocks: int, multiprocessors: int) -> float:
    """Return how long a kernel takes, nanoseconds of a model GPU: to compare kernels, not to tell time.

    A block reads its rows of A and columns of B, and keeps as much of them in flight as its pipeline is deep.
    """
    tile = tile_of(kernel)
    if tile is None:
        return _SECOND_KERNEL_NS
    rows, columns = min(tile[0], product.m), min(tile[1], product.n)
    tiles = -(-product.m // tile[0]) * -(-product.n // tile[1]) * product.batch
    split = 1 if is_persistent(kernel) else max(blocks // tiles, 1)
    length = product.k / split
    reading = length * (rows + columns) * 2 / _BYTES_PER_NS
    return math.ceil(tiles * split / multiprocessors) * reading + length / _depth(kernel) * _LATENCY_NS


def _depth(kernel: str) -> float:
    """Return how much of the length of the sums a block has in flight: the name has it, as in 64x64_64x6."""
    if found := _DEPTH.search(kernel):
        return float(found[1]) * max(int(found[2]) - 1, 1)
    return _HOPPER_DEPTH if is_persistent(kernel) else _USUAL_DEPTH
