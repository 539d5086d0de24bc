"""Memory that is older than a recording: the model, the state of its optimizer, the batch.

The profiler sees allocations only. Older memory is known from the tensors that were named or passed to
calls (CPU), or from the allocator itself (GPU), and becomes allocations at the beginning of the trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from xmem.trace.blocks import BORN_BEFORE, BlockTable, pair_blocks
from xmem.trace.trace import Trace

if TYPE_CHECKING:
    from xmem.capture.child.xmem_child.block import RecordedBlock
    from xmem.capture.child.xmem_child.records.trace_writer import MemoryChange


class _Sighting(NamedTuple):
    """Memory that is known to be alive at an instant."""

    time_ns: int
    address: int
    size_bytes: int
    is_seen: bool  # seen by a call; else named


class _Life(NamedTuple):
    """A block of the trace."""

    alloc_ns: int
    free_ns: int
    born_before: bool


def changes_before(recorded: RecordedBlock, trace: Trace) -> list[MemoryChange]:
    """Return the allocations and frees to add to a recording; inputs found this way get a row in its tensors.

    Args:
        recorded: The recording; the ``tensors`` of its metadata grow.
        trace: The profiler's trace of it.
    """
    if recorded.on_gpu:
        return list(_on_gpu(recorded))
    return _on_cpu(recorded, pair_blocks(trace))


def measured_peaks(recorded: RecordedBlock, trace: Trace) -> list[dict[str, int]]:
    """Return the most that each device's allocator reports to have held, for a recording on a GPU."""
    memory = trace.memory
    peaks = []
    for device, (allocated, reserved) in recorded.totals.items():
        rows = (memory.device_type != 0) & (memory.device_index == device)
        allocated = max(allocated, int(memory.total_allocated[rows].max(initial=0)))
        reserved = max(reserved, int(memory.total_reserved[rows].max(initial=0)))
        if reserved > 0:
            peaks.append(
                {"device": device, "peak_reserved_bytes": reserved, "peak_allocated_bytes": allocated}
            )
    return peaks


def _on_gpu(recorded: RecordedBlock) -> Iterator[MemoryChange]:
    """Yield blocks of named tensors; only the sum of the others is known, from the first total."""
    named = set(recorded.metadata["tensors"]["address"])
    for device, (allocated, reserved) in recorded.totals.items():
        blocks = [row for row in recorded.existing if row.device_index == device and row.address in named]
        total = allocated - sum(row.size_bytes for row in blocks)
        for row in blocks:
            total += row.size_bytes
            yield row._replace(
                time_ns=recorded.begin_ns, total_allocated_bytes=total, total_reserved_bytes=reserved
            )


def _on_cpu(recorded: RecordedBlock, blocks: BlockTable) -> list[MemoryChange]:
    from xmem.capture.child.xmem_child.records.trace_writer import CPU, MemoryChange

    tensors = recorded.metadata["tensors"]
    sightings = [
        _Sighting(time_ns, address, size_bytes, False)
        for time_ns, address, size_bytes in zip(
            tensors["time_ns"], tensors["address"], tensors["size_bytes"], strict=True
        )
    ]
    sightings += [
        _Sighting(seen.time_ns, address, seen.size_bytes, True) for address, seen in recorded.seen.items()
    ]
    lives = _lives_at({sighting.address for sighting in sightings}, blocks)
    found: dict[int, MemoryChange] = {}
    for sighting in sorted(sightings):
        here = lives[sighting.address]
        alive = [life for life in here if life.alloc_ns <= sighting.time_ns < life.free_ns]
        if any(not life.born_before for life in alive) or sighting.size_bytes == 0:
            continue
        if not alive and sighting.address not in found:
            # Memory that did not come from torch's allocator may follow a block at its address.
            is_later = any(life.alloc_ns < sighting.time_ns for life in here)
            begin_ns = sighting.time_ns if is_later else recorded.begin_ns
            found[sighting.address] = MemoryChange(begin_ns, CPU, -1, sighting.address, sighting.size_bytes)
        if sighting.is_seen:
            _name_input(tensors, recorded, sighting)
    ends = [
        change._replace(time_ns=recorded.ends_ns[address], size_bytes=-change.size_bytes)
        for address, change in found.items()
        if address in recorded.ends_ns
    ]
    return sorted([*found.values(), *ends])


def _lives_at(addresses: set[int], blocks: BlockTable) -> defaultdict[int, list[_Life]]:
    rows = np.flatnonzero(np.isin(blocks.address, np.fromiter(addresses, np.int64, len(addresses))))
    lives: defaultdict[int, list[_Life]] = defaultdict(list)
    for row in rows:
        lives[int(blocks.address[row])].append(
            _Life(
                int(blocks.alloc_ns[row]),
                int(blocks.free_ns[row]),
                bool(blocks.flags[row] & BORN_BEFORE),
            )
        )
    return lives


def _name_input(tensors: dict[str, list[Any]], recorded: RecordedBlock, sighting: _Sighting) -> None:
    seen = recorded.seen[sighting.address]
    row = {
        "role": "input",
        "name": seen.line,
        "address": sighting.address,
        "size_bytes": sighting.size_bytes,
        "time_ns": sighting.time_ns,
        "dtype": seen.dtype,
        "shape": seen.shape,
        "group": -1,
    }
    for column, value in row.items():
        tensors[column].append(value)
