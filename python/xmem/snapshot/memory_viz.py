"""Writes a replay as a snapshot of ``torch.cuda.memory``: the predicted run in the viewers that people know.

The public viewer (pytorch.org/memory_viz), ``torch.cuda._memory_viz`` and ``xmem-fast replay`` open what
``write_snapshot`` writes: plain lists, dicts, strings and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xmem.files.plain_pickle import Columns, PlainPickle, References
from xmem.records import dataclass
from xmem.simulation.replay import BlockState, DeviceAction, Replay, RequestKind, Requests

__all__ = ["Frame", "Origins", "write_snapshot"]


class Frame(NamedTuple):
    """A function in a file, or a stand-in for one."""

    name: str
    filename: str
    line: int


_STATES = {
    BlockState.FREE: "inactive",
    BlockState.ALLOCATED: "active_allocated",
    BlockState.PENDING_FREE: "active_pending_free",
}
_POOLS = ("small", "large")
_ACTIONS = (*(action.name.lower() for action in DeviceAction), "alloc", "free_requested")
_ALLOC, _FREE_REQUESTED = len(DeviceAction), len(DeviceAction) + 1
_EVENT_KEYS = ("action", "addr", "size", "stream", "pool_id", "time_us", "frames", "category")
_KEY_OF_OOM = {"addr": "device_free"}
_BLOCK_KEYS = ("address", "size", "requested_size", "state", "frames")
_NO_CATEGORY = "unknown"  # the public viewer fails where a snapshot has categories and not this one


@dataclass(frozen=True)
class Origins:
    """The origins of blocks.

    Attributes:
        frames: Distinct frames.
        stacks: Distinct stacks, of indices into ``frames``, innermost first.
        category: Category of the blocks of each stack; the public viewer colours by it.
        stack: int32 per block, index into ``stacks``, -1 = not known.
    """

    frames: Sequence[Frame]
    stacks: Sequence[Sequence[int]]
    category: Sequence[str]
    stack: NDArray[np.int32]


def write_snapshot(
    file: IO[bytes],
    requests: Requests,
    replay: Replay,
    origins: Origins | None = None,
    alloc_conf: str = "",
) -> int:
    """Pickle a replay as ``torch.cuda.memory._snapshot`` would return it, for device 0.

    Besides PyTorch's keys it has ``xmem``, which holds the values that events share.

    Args:
        file: File to write to.
        requests: The requests that were replayed.
        replay: Replay from an empty start.
        origins: Origins of the blocks; unknown by default.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the replay, which a reader needs to repeat it.

    Returns:
        The number of events.
    """
    nobody = np.full(len(requests.size_bytes), -1, np.int32)
    pickle = PlainPickle(file)
    pickle.open_dict()
    pickle.value("xmem")
    shared = _Shared(
        pickle, origins or Origins([], [], [], nobody), int(replay.events.mempool.max(initial=0))
    )
    pickle.close_item()
    pickle.value("segments")
    _write_segments(pickle, replay, shared)
    pickle.close_item()
    pickle.value("device_traces")
    pickle.open_list()
    events = _events_of(requests, replay)
    _write_events(pickle, events, shared)
    pickle.close_element()
    pickle.close_item()
    for key, value in (
        ("allocator_settings", {"PYTORCH_CUDA_ALLOC_CONF": alloc_conf}),
        ("external_annotations", []),
    ):
        pickle.value(key)
        pickle.value(value)
        pickle.close_item()
    pickle.close()
    return len(events.action)


class _Shared:
    """The values that events and blocks share, written as a dict where the pickle stands.

    Attributes:
        action: References, one per entry of ``_ACTIONS``.
        state: References, one per ``BlockState``.
        pool_id: References, one per private pool, that of the default pool first.
        stack: References, one per block, that of an empty stack last.
        category: References, one per block, that of no category last.
    """

    def __init__(self, pickle: PlainPickle, origins: Origins, pools: int) -> None:
        def remembered(name: str, values: Sequence[Any]) -> NDArray[np.uint32]:
            pickle.value(name)
            pickle.open_list()
            references = []
            for value in values:
                references.append(pickle.remember(value))
                pickle.close_element()
            pickle.close_item()
            return np.array(references, np.uint32)

        stack = np.append(origins.stack, np.int32(-1))
        pickle.open_dict()
        remembered("keys", [*_EVENT_KEYS, *_KEY_OF_OOM.values(), *_BLOCK_KEYS])
        self.action = remembered("actions", _ACTIONS)
        self.state = remembered("states", [_STATES[state] for state in BlockState])
        self.pool_id = remembered("pools", [_mempool_id(pool) for pool in range(pools + 1)])
        frames = remembered("frames", [frame._asdict() for frame in origins.frames]).tolist()
        pickle.value("stacks")
        pickle.open_list()
        stacks = []
        for frames_of_stack in [*origins.stacks, []]:
            stacks.append(pickle.remember_list([frames[frame] for frame in frames_of_stack]))
            pickle.close_element()
        pickle.close_item()
        self.stack = np.array(stacks, np.uint32)[stack]
        self.category = remembered("categories", [*origins.category, _NO_CATEGORY])[stack]


@dataclass(frozen=True)
class _Events:
    """Events as PyTorch records them: the device's answers to a request, then the request itself.

    Attributes:
        action: uint8, index into ``_ACTIONS``.
        address: int64; for an OOM the free bytes of the device.
        size_bytes: int64.
        stream: int64.
        mempool: int32, 0 for the default pool.
        time_us: int64.
        block: int32, the block that the request is about, -1 = none.
    """

    action: NDArray[np.uint8]
    address: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    stream: NDArray[np.int64]
    mempool: NDArray[np.int32]
    time_us: NDArray[np.int64]
    block: NDArray[np.int32]


def _events_of(requests: Requests, replay: Replay) -> _Events:
    count = len(replay.timeline.reserved_bytes)
    kind = requests.kind[:count]
    of_block = np.isin(kind, (RequestKind.ALLOC, RequestKind.FREE, RequestKind.RECORD_STREAM))
    block_of = np.where(of_block, requests.block[:count], -1).astype(np.int32)
    placed = of_block & (replay.placement.address[block_of] >= 0)
    allocs = np.flatnonzero(placed & (kind == RequestKind.ALLOC))
    frees = np.flatnonzero(placed & (kind == RequestKind.FREE))
    waits = np.zeros(len(requests.size_bytes), np.bool_)  # completes later; the device's answers say when
    waits[block_of[placed & (kind == RequestKind.RECORD_STREAM)]] = True
    at_once = frees[~waits[block_of[frees]]]

    device = replay.events
    request = np.concatenate([device.request, allocs, frees, at_once])
    action = np.repeat(
        np.array([_ALLOC, _FREE_REQUESTED, DeviceAction.FREE_COMPLETED], np.uint8),
        [len(allocs), len(frees), len(at_once)],
    )
    block = block_of[request]
    own = block[len(device.request) :]
    mempool = _mempool_of_blocks(replay)
    # Stable, so of one request the device's answers come first, in order, and free_completed comes last.
    order = np.argsort(request, kind="stable")
    return _Events(
        action=np.concatenate([device.action, action])[order],
        address=np.concatenate([device.address, replay.placement.address[own]])[order],
        size_bytes=np.concatenate([device.size_bytes, requests.size_bytes[own]])[order],
        stream=np.concatenate([device.stream, requests.stream[own]])[order],
        mempool=np.concatenate([device.mempool, mempool[own]])[order],
        time_us=requests.time_ns[request[order]] // 1000,
        block=block[order],
    )


def _write_events(pickle: PlainPickle, events: _Events, shared: _Shared) -> None:
    pickle.open_list()
    of_block = np.isin(events.action, (_ALLOC, _FREE_REQUESTED, DeviceAction.FREE_COMPLETED))
    columns: Columns = {
        "action": References(shared.action[events.action]),
        "addr": events.address,
        "size": events.size_bytes,
        "stream": events.stream,
        "pool_id": References(shared.pool_id[events.mempool]),
        "time_us": events.time_us,
        "frames": References(shared.stack[events.block]),
        "category": References(shared.category[np.where(of_block, events.block, -1)]),
    }
    ooms = np.flatnonzero(events.action == DeviceAction.OOM).tolist()
    begin = 0
    for oom in [*ooms, len(events.action)]:
        pickle.rows(columns, begin, oom)
        if oom < len(events.action):  # has the device's free bytes in place of an address
            renamed = {_KEY_OF_OOM.get(key, key): column for key, column in columns.items()}
            pickle.rows(renamed, oom, oom + 1)
        begin = oom + 1


def _write_segments(pickle: PlainPickle, replay: Replay, shared: _Shared) -> None:
    state = replay.state
    first = np.searchsorted(state.block_segment, np.arange(len(state.segment_id) + 1)).tolist()
    blocks: Columns = {
        "address": state.block_address,
        "size": state.block_bytes,
        "requested_size": state.block_requested_bytes,
        "state": References(shared.state[state.block_state]),
        "frames": References(shared.stack[state.block]),
    }
    active = _bytes_by_segment(replay, state.block_state != BlockState.FREE)
    allocated = _bytes_by_segment(replay, state.block_state == BlockState.ALLOCATED)
    requested_bytes = np.bincount(
        state.block_segment, state.block_requested_bytes, len(state.segment_id)
    ).astype(np.int64)
    pickle.open_list()
    for row in range(len(state.segment_id)):
        pickle.value(
            {
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
            }
        )
        pickle.value("blocks")
        pickle.open_list()
        pickle.rows(blocks, first[row], first[row + 1])
        pickle.close_item()
        pickle.close_element()


def _bytes_by_segment(replay: Replay, counted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Sum the blocks that count, for each segment of the state."""
    state = replay.state
    sums = np.bincount(state.block_segment[counted], state.block_bytes[counted], len(state.segment_id))
    return sums.astype(np.int64)


def _mempool_of_blocks(replay: Replay) -> NDArray[np.int32]:
    """Return the private pool that each block was placed in; 0 for the default pool, and if it was not
    placed."""
    segment = replay.placement.segment
    if len(replay.segment_mempool) == 0:
        return np.zeros(len(segment), np.int32)
    return np.where(segment >= 0, replay.segment_mempool[segment], 0).astype(np.int32)


def _mempool_id(number: int) -> tuple[int, int]:
    """Return the id of a private pool as PyTorch gives it to a ``MemPool``; (0, 0) is the default pool."""
    return 0, int(number)
