"""How many blocks of a kernel a multiprocessor holds, and how the grid fills the GPU.

Columns in, columns out. Theoretical occupancy follows from the launch (threads, shared memory), the kernel
(registers) and the compute capability alone. The rules are those of the CUDA C++ Programming
Guide and of the calculator in the CUDA toolkit; ``xmem.testing.reference.occupancy`` says them again, one
launch at a time.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xmem.occupancy.limits import Limits
from xmem.records import dataclass

_NO_LIMIT = np.iinfo(np.int32).max


class Limiter(IntEnum):
    """What keeps a multiprocessor from holding one more block of a kernel.

    Where several do, it is the first of this list. ``NOTHING_FITS``: the kernel cannot be launched so.
    """

    WARPS = 0
    REGISTERS = 1
    SHARED_MEMORY = 2
    BLOCKS = 3
    CLUSTER = 4
    NOTHING_FITS = 5


@dataclass(frozen=True)
class Residency:
    """How many blocks a multiprocessor holds, a row per launch.

    Attributes:
        warps_per_block: int32, threads rounded up to warps.
        active_blocks: int32, blocks that a multiprocessor holds at a time; 0 = it cannot be launched so.
        limiter: uint8, a ``Limiter``.
        theoretical: float64, resident warps over the most that the multiprocessor can hold, 0 to 1.
    """

    warps_per_block: NDArray[np.int32]
    active_blocks: NDArray[np.int32]
    limiter: NDArray[np.uint8]
    theoretical: NDArray[np.float64]


@dataclass(frozen=True)
class Filling:
    """How a grid fills the GPU, a row per launch. All blocks are taken to run equally long, wave after wave.

    Attributes:
        waves: float64, blocks over those that the GPU holds at a time; below 1 some of it stays empty.
        tail: float64, how full the last wave is, above 0 and at most 1.
        steady: float64, occupancy of all multiprocessors while blocks are left: what profilers estimate.
        elapsed: float64, the same over the whole kernel, its last wave included.
        active: float64, over the time that a multiprocessor has any block: the "achieved occupancy" of
            Nsight Compute.
    """

    waves: NDArray[np.float64]
    tail: NDArray[np.float64]
    steady: NDArray[np.float64]
    elapsed: NDArray[np.float64]
    active: NDArray[np.float64]


def residency(
    limits: Limits,
    threads: ArrayLike,
    registers: ArrayLike,
    shared_bytes: ArrayLike,
    cluster_blocks: ArrayLike = 1,
    multiprocessors: int = -1,
    *,
    like_kineto: bool = False,
) -> Residency:
    """Return how many blocks of each launch a multiprocessor holds.

    Args:
        limits: Of the compute capability.
        threads: Threads per block.
        registers: Registers per thread.
        shared_bytes: Static and dynamic shared memory per block, bytes.
        cluster_blocks: Blocks per cluster; 0 and 1 = no cluster.
        multiprocessors: Of the GPU. With it, clusters that the GPU cannot hold whole are left out; how its
            multiprocessors are grouped is not known, so that the count is an upper bound for clusters.
        like_kineto: Reproduce ``est. achieved occupancy %`` of PyTorch's profiler (libkineto's
            ``DeviceProperties.cpp``), which knows no opt-in: a block of more than 48 KiB counts as none.
    """
    threads, registers, shared_bytes, cluster_blocks = np.broadcast_arrays(
        *(np.asarray(column, dtype=np.int64) for column in (threads, registers, shared_bytes, cluster_blocks))
    )
    warps = -(-threads // limits.warp_size)
    at_least_one_warp = np.maximum(warps, 1)
    most = np.stack(
        [
            limits.warps // at_least_one_warp,
            _by_registers(limits, at_least_one_warp, registers),
            _by_shared_memory(limits, shared_bytes, like_kineto),
            np.full(warps.shape, limits.blocks),
        ]
    )
    limiter = most.argmin(axis=0)  # the first of equals
    active = most.min(axis=0)
    if multiprocessors > 0:
        clusters = np.maximum(cluster_blocks, 1)
        whole = active * multiprocessors // clusters * clusters / multiprocessors
        limiter = np.where(whole < active, int(Limiter.CLUSTER), limiter)
        theoretical = whole * warps / limits.warps
    else:
        theoretical = active * warps / limits.warps
    fits = (active > 0) & (warps > 0)
    return Residency(
        warps_per_block=warps.astype(np.int32),
        active_blocks=np.where(fits, active, 0).astype(np.int32),
        limiter=np.where(fits, limiter, int(Limiter.NOTHING_FITS)).astype(np.uint8),
        theoretical=np.where(fits, theoretical, 0.0),
    )


def _by_registers(
    limits: Limits, warps: NDArray[np.int64], registers: NDArray[np.int64]
) -> NDArray[np.int64]:
    unit = limits.register_unit
    per_warp = np.maximum(-(-registers * limits.warp_size // unit) * unit, 1)
    per_partition = limits.registers // limits.sub_partitions // per_warp
    blocks = per_partition * limits.sub_partitions // warps
    # A launch is refused as if the block's warps were dealt evenly to the partitions.
    dealt = -(-warps // limits.sub_partitions) * limits.sub_partitions
    blocks = np.where(dealt * per_warp > limits.registers_per_block, 0, blocks)
    return np.where(registers > 0, blocks, _NO_LIMIT)


def _by_shared_memory(
    limits: Limits, shared_bytes: NDArray[np.int64], like_kineto: bool
) -> NDArray[np.int64]:
    unit = limits.shared_unit
    taken = -(-(shared_bytes + limits.reserved_shared_bytes) // unit) * unit
    blocks = np.where(taken > 0, limits.shared_bytes // np.maximum(taken, 1), _NO_LIMIT)
    most = limits.shared_bytes_per_block if like_kineto else limits.shared_bytes_opt_in
    return np.where(shared_bytes > most, 0, blocks)


def filling(limits: Limits, multiprocessors: int, held: Residency, blocks: ArrayLike) -> Filling:
    """Return how the grids fill a GPU of that many multiprocessors.

    Args:
        limits: Of the compute capability.
        multiprocessors: Of the GPU, at least 1.
        held: How many blocks a multiprocessor holds.
        blocks: Blocks of the grid. A dimension that a trace gives as 0 counts as 1.
    """
    grid = np.maximum(np.asarray(blocks, dtype=np.int64), 1)
    per_block = held.warps_per_block / limits.warps
    fits = held.active_blocks > 0
    at_once = np.maximum(held.active_blocks, 1).astype(np.int64) * multiprocessors
    waves = grid / at_once
    full, rest = np.divmod(grid, at_once)
    begun = full + (rest > 0)
    steady = np.minimum(held.active_blocks, grid / multiprocessors) * per_block
    # Multiprocessors that have a block in the last wave: blocks go to the emptiest one first.
    busy = full * multiprocessors + np.minimum(rest, multiprocessors)
    elapsed = grid * per_block / (multiprocessors * begun)
    active = grid * per_block / busy
    return Filling(
        waves=np.where(fits, waves, 0.0),
        tail=np.where(fits, np.where(rest > 0, rest / at_once, 1.0), 0.0),
        steady=np.where(fits, steady, 0.0),
        elapsed=np.where(fits, elapsed, 0.0),
        active=np.where(fits, active, 0.0),
    )


def kineto_percent(
    limits: Limits, multiprocessors: int, threads: ArrayLike, held: Residency, blocks: ArrayLike
) -> NDArray[np.int64]:
    """Return ``est. achieved occupancy %`` as PyTorch's profiler writes it.

    ``held`` is of ``residency(like_kineto=True)``. The profiler counts threads instead of
    warps, and rounds half up to whole percents, at most 100.
    """
    threads = np.asarray(threads, dtype=np.int64)
    grid = np.maximum(np.asarray(blocks, dtype=np.int64), 1)
    per_sm = np.minimum(held.active_blocks, (grid / multiprocessors).astype(np.float32))
    share = per_sm * threads / (limits.warps * limits.warp_size)
    percent: NDArray[np.int64] = np.floor(np.minimum(share, 1.0) * 100 + 0.5).astype(np.int64)
    return percent
