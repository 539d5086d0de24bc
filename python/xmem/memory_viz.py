"""A replay as a snapshot of ``torch.cuda.memory``: the predicted run in the viewers that people know.

The public viewer (pytorch.org/memory_viz), ``torch.cuda._memory_viz`` and ``xmem-fast replay`` open what
``write_snapshot`` writes: plain lists, dicts, strings and numbers.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem.attribution import Attribution, Category
from xmem.errors import ConfigError
from xmem.files import write_whole
from xmem.orchestration.workload import Workload
from xmem.simulation import BlockState, DeviceAction, Replay, RequestKind, Requests
from xmem.source_lines import user_line
from xmem.trace import Trace

__all__ = ["Frames", "frames_of", "snapshot_of", "write_snapshot"]

Frames = list[dict[str, Any]]
"""A stack as snapshots hold it, innermost first: ``name``, ``filename`` and ``line`` of each frame."""

_PICKLE_PROTOCOL = 4  # what the public viewer reads in JavaScript
_STATES = {
    BlockState.FREE: "inactive",
    BlockState.ALLOCATED: "active_allocated",
    BlockState.PENDING_FREE: "active_pending_free",
}
_POOLS = ("small", "large")


def frames_of(trace: Trace, attribution: Attribution, workload: Workload) -> list[Frames]:
    """What is known of the origin of each block: operator, module and source line, category.

    The viewers show a frame as ``filename:line:name``; operators and categories have these words for a file.
    Blocks of one origin share one list, so that a file holds it once.
    """
    operator = np.where(workload.operator >= 0, trace.events.name[workload.operator], -1)
    keys = np.stack([operator, workload.module, workload.source_line, workload.category], axis=1)
    origins, which = np.unique(keys, axis=0, return_inverse=True)
    stacks = [_stack(trace, attribution, *origin) for origin in origins.tolist()]
    return [stacks[origin] for origin in which.ravel().tolist()]


def _stack(
    trace: Trace, attribution: Attribution, operator: int, module: int, line: int, category: int
) -> Frames:
    stack: Frames = []
    if operator >= 0:
        stack.append({"name": trace.names[operator], "filename": "operator", "line": 0})
    if module >= 0 or line >= 0:
        filename, _, number = (user_line(attribution.lines[line]) if line >= 0 else "").rpartition(":")
        stack.append(
            {
                "name": attribution.modules[module] if module >= 0 else "(outside of modules)",
                "filename": filename,
                "line": int(number or 0),
            }
        )
    stack.append({"name": Category(category).label, "filename": "category", "line": 0})
    return stack


def snapshot_of(
    requests: Requests, replay: Replay, frames: Sequence[Frames] | None = None, alloc_conf: str = ""
) -> dict[str, Any]:
    """The replay as ``torch.cuda.memory._snapshot`` would return it, for device 0.

    Args:
        requests: What was replayed.
        replay: From an empty start.
        frames: The stack of each block; none by default.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the replay, which a reader needs to repeat it.
    """
    stacks: Sequence[Frames] = frames if frames is not None else [[]] * len(requests.size_bytes)
    return {
        "segments": list(_segments(replay, stacks)),
        "device_traces": [list(_events(requests, replay, stacks))],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": alloc_conf},
        "external_annotations": [],
    }


def write_snapshot(snapshot: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Pickle a snapshot.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        write_whole(path, pickle.dumps(snapshot, protocol=_PICKLE_PROTOCOL))
    except OSError as error:
        raise ConfigError(
            f"-o {os.fspath(path)}", f"a file that can be written ({error.strerror})"
        ) from error


def _events(requests: Requests, replay: Replay, stacks: Sequence[Frames]) -> Iterator[dict[str, Any]]:
    """What PyTorch records: the device's answers to a request, then the request itself."""
    count = len(replay.timeline.reserved_bytes)
    begin = np.searchsorted(replay.events.request, np.arange(count)).tolist()
    begin.append(len(replay.events.action))
    device = list(_device_events(replay))
    address = replay.placement.address.tolist()
    mempool = _mempool_of_blocks(replay).tolist()
    size, stream = requests.size_bytes.tolist(), requests.stream.tolist()
    rows = zip(
        requests.kind[:count].tolist(),
        requests.block[:count].tolist(),
        (requests.time_ns[:count] // 1000).tolist(),
        strict=True,
    )
    waits: set[int] = set()  # blocks whose free completes later; the device's answers say when
    for request, (kind, block, time_us) in enumerate(rows):
        of_block = kind in (RequestKind.ALLOC, RequestKind.FREE, RequestKind.RECORD_STREAM)
        frames = stacks[block] if of_block else []
        for event in device[begin[request] : begin[request + 1]]:
            yield {**event, "time_us": time_us, "frames": frames}
        if not of_block or address[block] < 0:
            continue
        if kind == RequestKind.RECORD_STREAM:
            waits.add(block)
            continue
        names = ("alloc",) if kind == RequestKind.ALLOC else ("free_requested", "free_completed")
        if kind == RequestKind.FREE and block in waits:
            names = ("free_requested",)
        for name in names:
            yield {
                "action": name,
                "addr": address[block],
                "size": size[block],
                "stream": stream[block],
                "pool_id": _mempool_id(mempool[block]),
                "time_us": time_us,
                "frames": frames,
            }


def _bytes_by_segment(replay: Replay, counted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Sum of the blocks that count, for each segment of the state."""
    state = replay.state
    sums = np.bincount(state.block_segment[counted], state.block_bytes[counted], len(state.segment_id))
    return sums.astype(np.int64)


def _mempool_of_blocks(replay: Replay) -> NDArray[np.int32]:
    """The private pool that each block was placed in; 0 for the default pool, and where it was not placed."""
    segment = replay.placement.segment
    if len(replay.segment_mempool) == 0:
        return np.zeros(len(segment), np.int32)
    return np.where(segment >= 0, replay.segment_mempool[segment], 0).astype(np.int32)


def _device_events(replay: Replay) -> Iterator[dict[str, Any]]:
    events = replay.events
    for action, address, size, stream, mempool in zip(
        events.action.tolist(),
        events.address.tolist(),
        events.size_bytes.tolist(),
        events.stream.tolist(),
        events.mempool.tolist(),
        strict=True,
    ):
        where = "device_free" if action == DeviceAction.OOM else "addr"
        yield {
            "action": DeviceAction(action).name.lower(),
            where: address,
            "size": size,
            "stream": stream,
            "pool_id": _mempool_id(mempool),
        }


def _mempool_id(number: int) -> tuple[int, int]:
    """The id of a private pool as PyTorch gives it to a ``MemPool``; (0, 0) is the default pool."""
    return 0, int(number)


def _segments(replay: Replay, stacks: Sequence[Frames]) -> Iterator[dict[str, Any]]:
    state = replay.state
    first = np.searchsorted(state.block_segment, np.arange(len(state.segment_id) + 1)).tolist()
    blocks = [
        {
            "address": address,
            "size": size,
            "requested_size": requested,
            "state": _STATES[BlockState(block_state)],
            "frames": stacks[block] if block >= 0 else [],
        }
        for address, size, requested, block_state, block in zip(
            state.block_address.tolist(),
            state.block_bytes.tolist(),
            state.block_requested_bytes.tolist(),
            state.block_state.tolist(),
            state.block.tolist(),
            strict=True,
        )
    ]
    active = _bytes_by_segment(replay, state.block_state != BlockState.FREE)
    allocated = _bytes_by_segment(replay, state.block_state == BlockState.ALLOCATED)
    requested_bytes = np.bincount(
        state.block_segment, state.block_requested_bytes, len(state.segment_id)
    ).astype(np.int64)
    for row in range(len(state.segment_id)):
        yield {
            "device": 0,
            "address": int(state.segment_address[row]),
            "total_size": int(state.segment_bytes[row]),
            "allocated_size": int(allocated[row]),
            "active_size": int(active[row]),
            "requested_size": int(requested_bytes[row]),
            "stream": int(state.segment_stream[row]),
            "segment_type": _POOLS[state.segment_pool[row]],
            "segment_pool_id": _mempool_id(state.segment_mempool[row]),
            "is_expandable": bool(state.segment_expandable[row]),
            "frames": [],
            "blocks": blocks[first[row] : first[row + 1]],
        }
