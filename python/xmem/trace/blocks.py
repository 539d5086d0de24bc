"""Memory blocks: allocations paired with their frees (VeritasEst, algorithm 1; docs/trace_model.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.records import dataclass
from xmem.trace.trace import Problem, Trace

BORN_BEFORE = 1
"""Flag: allocated before the trace began."""
NEVER_FREED = 2
"""Flag: ``free_ns`` is ``NEVER``."""
OVERWRITTEN = 4
"""Flag: ended because its address was allocated again."""

NEVER = int(np.iinfo(np.int64).max)
"""Time of a free that the trace does not hold."""

CPU, CUDA, ROCM = 0, 1, 6
"""Values of ``device_type``."""


@dataclass(frozen=True)
class BlockTable:
    """Reconstructed blocks, in order of allocation; those born before the trace first.

    Attributes:
        address: int64, -1 = the trace does not say.
        size_bytes: int64.
        alloc_ns: int64 nanoseconds.
        free_ns: int64 nanoseconds, ``NEVER`` when the trace holds no free.
        device_type: int8, 0 CPU, 1 CUDA, 6 ROCm.
        device_index: int32.
        thread: int32, of the allocation.
        alloc_event: int32, row of the MemoryTable, -1 = before the trace.
        free_event: int32, row of the MemoryTable that ended it, -1 = never freed.
        flags: uint8, sum of ``BORN_BEFORE``, ``NEVER_FREED``, ``OVERWRITTEN``.
    """

    address: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    alloc_ns: NDArray[np.int64]
    free_ns: NDArray[np.int64]
    device_type: NDArray[np.int8]
    device_index: NDArray[np.int32]
    thread: NDArray[np.int32]
    alloc_event: NDArray[np.int32]
    free_event: NDArray[np.int32]
    flags: NDArray[np.uint8]
    problems: list[Problem]
    core: _core.PairedBlocks

    def __len__(self) -> int:
        return len(self.address)


def pair_blocks(trace: Trace) -> BlockTable:
    """Pair the memory events of a trace into blocks."""
    core = _core.pair_blocks(trace.core)
    return BlockTable(
        address=core.address,
        size_bytes=core.size_bytes,
        alloc_ns=core.alloc_ns,
        free_ns=core.free_ns,
        device_type=core.device_type,
        device_index=core.device_index,
        thread=core.thread,
        alloc_event=core.alloc_event,
        free_event=core.free_event,
        flags=core.flags,
        problems=[Problem(*found) for found in core.diagnostics],
        core=core,
    )


def traced_device(blocks: BlockTable, busiest: int | None = None) -> tuple[int, int]:
    """Return type and index of the device that a run is about: the GPU with the most bytes in the trace, or
    the CPU if it has none.

    Args:
        blocks: Blocks of the trace.
        busiest: The GPU on which PyTorch's allocator reserved most, if it said so; then that one is returned.
    """
    on_gpu = np.flatnonzero(blocks.device_type != CPU)
    if len(on_gpu) == 0:
        return CPU, int(blocks.device_index[0])
    keys = np.stack([blocks.device_type[on_gpu].astype(np.int64), blocks.device_index[on_gpu]])
    devices, which = np.unique(keys, axis=1, return_inverse=True)
    if busiest is not None and busiest in devices[1]:
        return int(devices[0][devices[1] == busiest][0]), busiest
    bytes_on = np.bincount(which.ravel(), weights=blocks.size_bytes[on_gpu])
    most = devices[:, int(np.argmax(bytes_on))]
    return int(most[0]), int(most[1])
