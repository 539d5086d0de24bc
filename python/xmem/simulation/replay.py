"""Replays allocations and frees through PyTorch's CUDA caching allocator, without a GPU.

    requests = make_requests(alloc_ns, free_ns, size_bytes)
    result = replay(requests, options=alloc_conf.parse("expandable_segments:True"), capacity_bytes=24 * 2**30)
    result.peak_reserved.bytes, result.oom

Columns are read-only NumPy arrays over memory of the core. Sizes and addresses are int64 bytes, times int64
nanoseconds, -1 means none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xmem import _core
from xmem.errors import ConfigError
from xmem.records import dataclass
from xmem.simulation.alloc_conf import AllocatorOptions

__all__ = [
    "FREE_AT_CHECKPOINT",
    "NEVER",
    "NO_ALTERNATIVES",
    "NO_CALLS",
    "SCOPE_DECIDES",
    "AllocatorOptions",
    "AllocatorState",
    "Alternatives",
    "BlockState",
    "Calls",
    "DeviceAction",
    "DeviceEvents",
    "OutOfMemory",
    "Peak",
    "Placement",
    "Replay",
    "RequestKind",
    "Requests",
    "Timeline",
    "make_requests",
    "replay",
]

NEVER = int(np.iinfo(np.int64).max)
"""Free time of a block that is never freed."""

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]

_TIE_BREAKS = {"address": 0, "object_age": 1, "segment_age": 2}


class RequestKind(IntEnum):
    """The kinds of requests to the allocator; three are about blocks, the others are calls.

    `RECORD_STREAM`: the block is used on another stream, so its free completes only at the next allocation
    or emptied cache, as on a device whose streams are idle by then.

    The others are about a private pool, that of CUDA graphs or of a ``torch.cuda.MemPool``, which has a
    number from 1 in place of a block. `BEGIN_POOL` (``torch.cuda.use_mem_pool``) or `BEGIN_CAPTURE` (of a
    graph) and `END_POOL` are the ends of a scope in which requests go to the pool. During a capture no cache
    is flushed, and frees that wait for other streams wait on; up to torch 2.12 during any scope. A pool has
    users: either begin and `RETAIN_POOL` (a ``MemPool`` is made) add one, `RELEASE_POOL` (a graph is reset,
    ``use_mem_pool`` ends, a ``MemPool`` is deleted) takes one away. Memory of a pool without users goes back
    in a flush, or by `EMPTY_POOL`, which follows where a ``MemPool`` is deleted. `USE_POOL_ON_OOM` and
    `FORBID_POOL_SPLIT` are the options ``use_on_oom`` and ``no_split`` of a ``MemPool``.

    The graph trees of ``torch.compile`` take checkpoints of a pool and go back to them. `CHECKPOINT_POOL` is
    about a pool; checkpoints are numbered from 0 in order. To go back, all blocks of the pool are freed and
    blocks with a `Requests.restores` allocated, one for each piece of a segment; `RESTORE_SEGMENT`, after
    those of one segment, and `RESTORE_POOL`, after the last, put them in their places. Both have the number
    of the checkpoint.
    """

    ALLOC = 0
    FREE = 1
    EMPTY_CACHE = 2
    RECORD_STREAM = 3
    BEGIN_POOL = 4
    BEGIN_CAPTURE = 5
    END_POOL = 6
    RELEASE_POOL = 7
    RETAIN_POOL = 8
    EMPTY_POOL = 9
    USE_POOL_ON_OOM = 10
    FORBID_POOL_SPLIT = 11
    CHECKPOINT_POOL = 12
    RESTORE_SEGMENT = 13
    RESTORE_POOL = 14


SCOPE_DECIDES = -1
"""In `Requests.mempool`: the pool whose scope is open serves."""

FREE_AT_CHECKPOINT = -2
"""In `Requests.restores`: a piece that was free, allocated for an instant while its segment is put back."""


class DeviceAction(IntEnum):
    """What the allocator asked of the device, or reported about it; the actions of PyTorch's memory trace."""

    SEGMENT_ALLOC = 0
    SEGMENT_FREE = 1
    SEGMENT_MAP = 2
    SEGMENT_UNMAP = 3
    FREE_COMPLETED = 4
    OOM = 5


class BlockState(IntEnum):
    """State of a block of a segment; PyTorch's inactive, active_allocated and active_pending_free."""

    FREE = 0
    ALLOCATED = 1
    PENDING_FREE = 2


@dataclass(frozen=True)
class Alternatives:
    """Sizes that allocations try in turn, as PyTorch tries cuDNN's execution plans (`Conv_v8.cpp`).

    The first size of its list that the allocator has memory for is what a block takes, and what the next
    block of the same list tries first; where that fails, the whole list is tried from its beginning. Each
    attempt is a request of its own: caches are flushed before it fails. A size of 0 asks for nothing and
    always serves. Out of memory only when the last one fails.

    Attributes:
        list: int32 per block, -1 where it has one size; no rows if no block has a list.
        begin: int64, where each list begins in ``size_bytes``, and the end of the last.
        size_bytes: int64.
    """

    list: Int32
    begin: Int64
    size_bytes: Int64

    def __len__(self) -> int:
        return max(len(self.begin) - 1, 0)

    def sizes_of(self, number: int) -> Int64:
        """Return the sizes of a list, in order."""
        return self.size_bytes[self.begin[number] : self.begin[number + 1]]


def _empty(dtype: type[np.int32] | type[np.int64]) -> NDArray[Any]:
    column = np.empty(0, dtype)
    column.flags.writeable = False
    return column


NO_ALTERNATIVES = Alternatives(_empty(np.int32), _empty(np.int64), _empty(np.int64))
"""Every block has one size."""


@dataclass(frozen=True)
class Calls:
    """The calls of a program to the allocator besides its requests for memory, in any order.

    Attributes:
        time_ns: int64.
        kind: uint8, a `RequestKind` that is not about a block.
        number: int32, of the private pool or the checkpoint, -1 for an emptied cache.
    """

    time_ns: Int64
    kind: UInt8
    number: Int32

    @classmethod
    def emptied(cls, time_ns: ArrayLike) -> Calls:
        """Make calls that empty the cache at these instants."""
        times = _column(time_ns, "empty_cache_ns")
        kinds = np.full(len(times), RequestKind.EMPTY_CACHE, np.uint8)
        return cls(times, kinds, np.full(len(times), -1, np.int32))


NO_CALLS = Calls(_empty(np.int64), np.empty(0, np.uint8), _empty(np.int32))


@dataclass(frozen=True)
class Requests:
    """Ordered requests and the blocks that they are about.

    Attributes:
        kind: uint8 per request, `RequestKind`.
        block: int32 per request, index into the block columns; -1 for an emptied cache, the number of the
            pool or the checkpoint for a request about one.
        time_ns: int64 per request.
        size_bytes: int64 per block, as requested, before any rounding; the first that it tries if it has
            alternatives.
        stream: int64 per block, the CUDA stream that it is allocated on.
        alternatives: Sizes of the blocks that take the first size that fits.
        mempool: int32 per block, the private pool that serves it, 0 for the default pool, or
            `SCOPE_DECIDES`; empty where scopes decide about all.
        restores: int32 per block, the block whose place it takes when a pool is restored to a checkpoint,
            `FREE_AT_CHECKPOINT`, -1 for all others; empty where there are no others.
    """

    kind: UInt8
    block: Int32
    time_ns: Int64
    size_bytes: Int64
    stream: Int64
    alternatives: Alternatives = NO_ALTERNATIVES
    mempool: Int32 = field(default_factory=lambda: _empty(np.int32))
    restores: Int32 = field(default_factory=lambda: _empty(np.int32))

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def uses_private_pools(self) -> bool:
        """Whether any request is about a private pool, or served by one."""
        return bool((self.kind >= RequestKind.BEGIN_POOL).any() or self.mempool.any())


@dataclass(frozen=True)
class Timeline:
    """Gauges after each request (int64 bytes), with the meaning of ``torch.cuda.memory_stats``."""

    allocated_bytes: Int64
    active_bytes: Int64
    reserved_bytes: Int64
    requested_bytes: Int64


@dataclass(frozen=True)
class Peak:
    """The highest value of a gauge and the first request that reached it (-1: no request did)."""

    bytes: int
    request: int


@dataclass(frozen=True)
class OutOfMemory:
    """A request that both the allocator and the device refused.

    Attributes:
        request: Index of the request.
        requested_bytes: Requested size.
        rounded_bytes: Size as PyTorch's memory trace reports it.
        device_free_bytes: Memory left on the device after all caches were given back.
    """

    request: int
    requested_bytes: int
    rounded_bytes: int
    device_free_bytes: int


@dataclass(frozen=True)
class Placement:
    """The placement of each block, one row per block; -1 where it was never allocated.

    Attributes:
        address: int64.
        segment: int32, number of the segment in order of creation.
        size_bytes: int64, the rounded size and the slack of a block that was not split; 0 where it took an
            alternative of 0 bytes.
    """

    address: Int64
    segment: Int32
    size_bytes: Int64


@dataclass(frozen=True)
class DeviceEvents:
    """Calls to the device and what else PyTorch's memory trace would show, in order.

    Attributes:
        action: uint8, `DeviceAction`.
        address: int64; of an OOM the free bytes of the device, as in PyTorch.
        size_bytes: int64; of an OOM the rounded request.
        stream: int64.
        mempool: int32, the private pool, 0 for the default pool.
        request: int64, index of the request that caused it.
    """

    action: UInt8
    address: Int64
    size_bytes: Int64
    stream: Int64
    mempool: Int32
    request: Int64


@dataclass(frozen=True)
class AllocatorState:
    """Segments in ascending address and the blocks that tile them.

    An expandable range appears as one segment per mapped stretch.

    Attributes:
        segment_address: int64.
        segment_bytes: int64.
        segment_stream: int64.
        segment_pool: uint8, 0 small, 1 large.
        segment_expandable: uint8, 0 or 1.
        segment_mempool: int32, the private pool that it belongs to, 0 for the default pool.
        segment_id: int32, order of creation, as in `Placement.segment`.
        block_segment: int32, index into the segment columns.
        block_address: int64.
        block_bytes: int64.
        block_requested_bytes: int64, 0 when free.
        block_state: uint8, `BlockState`.
        block: int32, the replayed block that lies there, -1 when free.
    """

    segment_address: Int64
    segment_bytes: Int64
    segment_stream: Int64
    segment_pool: UInt8
    segment_expandable: UInt8
    segment_mempool: Int32
    segment_id: Int32
    block_segment: Int32
    block_address: Int64
    block_bytes: Int64
    block_requested_bytes: Int64
    block_state: UInt8
    block: Int32


@dataclass(frozen=True)
class Replay:
    """The allocator's behaviour on a sequence of requests.

    Attributes:
        timeline: One row for each replayed request.
        peak_allocated: PyTorch's ``max_memory_allocated``.
        peak_active: Peak of active bytes.
        peak_reserved: PyTorch's ``max_memory_reserved``.
        peak_requested: Peak of bytes before rounding.
        placement: One row for each block.
        segment_mempool: int32, the private pool of each segment there ever was, 0 for the default pool; by
            number of the segment.
        events: Segments requested and given back.
        statistics: Counters under the keys of ``torch.cuda.memory_stats()``, such as
            ``reserved_bytes.all.peak``, after the last replayed request.
        reserved_by_private_pools: Number of each private pool that ever held memory, and the gauge of its
            reserved bytes, under keys such as ``all.peak``; as PyTorch's ``reserved_bytes_by_private_pools``.
        counters: `statistics` after every request: int64, a row a request, a column for each key in its
            order; no rows unless the replay was told to record them.
        failures: Requests that ran out of memory; at most one unless the replay was told to go on.
        state: Segments and blocks after the last replayed request.
    """

    timeline: Timeline
    peak_allocated: Peak
    peak_active: Peak
    peak_reserved: Peak
    peak_requested: Peak
    placement: Placement
    segment_mempool: Int32
    events: DeviceEvents
    statistics: Mapping[str, int]
    reserved_by_private_pools: Mapping[int, Mapping[str, int]]
    counters: Int64
    failures: tuple[OutOfMemory, ...]
    state: AllocatorState

    @property
    def oom(self) -> OutOfMemory | None:
        """The first request that ran out of memory, None when all were served."""
        return self.failures[0] if self.failures else None


def make_requests(
    alloc_ns: ArrayLike,
    free_ns: ArrayLike,
    size_bytes: ArrayLike,
    stream: ArrayLike | None = None,
    *,
    empty_cache_ns: ArrayLike = (),
    alternatives: Alternatives = NO_ALTERNATIVES,
    waits: ArrayLike = (),
    calls: Calls = NO_CALLS,
    mempool: ArrayLike = (),
    restores: ArrayLike = (),
) -> Requests:
    """Order the allocations and frees of blocks as an allocator would see them.

    By time; at equal times frees, then calls, then allocations; among equals the lower block, or the earlier
    call. A block that is freed at the instant of its allocation is allocated and freed back to back in the
    place of its allocation. Blocks of 0 bytes make no request.

    Args:
        alloc_ns: Allocation time of each block (int64).
        free_ns: Free time of each block (int64), `NEVER` when it is never freed.
        size_bytes: Requested size of each block (int64).
        stream: CUDA stream of each block (int64); stream 0 for all when left out.
        empty_cache_ns: Instants at which the program calls ``torch.cuda.empty_cache()``.
        alternatives: Lists of sizes, for blocks that take the first that fits; the first of a block's list
            stands in place of its ``size_bytes``.
        waits: Whether the free of each block waits for other streams (bool); none does when left out.
        calls: What else the program tells the allocator.
        mempool: As in `Requests`.
        restores: As in `Requests`.

    Raises:
        ConfigError: Columns of different length, a negative size, or a free before its allocation; names the
            block.
    """
    sizes = _column(size_bytes, "size_bytes")
    streams = np.zeros(len(sizes), np.int64) if stream is None else _column(stream, "stream")
    if len(streams) != len(sizes):
        raise ConfigError(f"stream has {len(streams)} values, not {len(sizes)}", "give one for each block")
    if len(alternatives.list):
        sizes = _with_first_alternatives(sizes, alternatives)
    emptied = Calls.emptied(empty_cache_ns)
    sequence = _core.make_request_sequence(
        _column(alloc_ns, "alloc_ns"),
        _column(free_ns, "free_ns"),
        sizes,
        np.asarray(waits, np.uint8),
        (
            np.concatenate([emptied.time_ns, calls.time_ns]),
            np.concatenate([emptied.kind, calls.kind]),
            np.concatenate([emptied.number, calls.number]),
        ),
    )
    return Requests(
        sequence.kind,
        sequence.block,
        sequence.time_ns,
        sizes,
        streams,
        alternatives,
        np.asarray(mempool, np.int32),
        np.asarray(restores, np.int32),
    )


def _with_first_alternatives(sizes: Int64, alternatives: Alternatives) -> Int64:
    if len(alternatives.list) != len(sizes):
        raise ConfigError(
            f"alternatives has {len(alternatives.list)} lists, not {len(sizes)}",
            "give one for each block",
        )
    rows = np.flatnonzero(alternatives.list >= 0)
    sizes = sizes.copy()
    sizes[rows] = alternatives.size_bytes[alternatives.begin[alternatives.list[rows]]]
    sizes.flags.writeable = False
    return sizes


def replay(
    requests: Requests,
    *,
    options: AllocatorOptions = AllocatorOptions(),  # noqa: B008 (frozen)
    capacity_bytes: int | None = None,
    other_bytes: int = 0,
    ascending_addresses: bool = False,
    until: int | None = None,
    on_oom: Literal["stop", "drop"] = "stop",
    every_counter: bool = False,
) -> Replay:
    """Replay requests through PyTorch's CUDA caching allocator over a device.

    Args:
        requests: Requests from `make_requests`.
        options: Settings of the allocator, from `xmem.simulation.alloc_conf.parse`.
        capacity_bytes: Memory of the device; None for a device without limit.
        other_bytes: Memory that others hold on the device: the CUDA context, libraries, other processes.
        ascending_addresses: Whether the device places segments from the bottom up, as some drivers do, not
            from the top down. Only a ``tie_break`` by address can notice.
        until: Index of the last request to replay, for the state at that instant; None for all, -1 for none.
        on_oom: ``stop`` at the first request that fails, or ``drop`` its block and go on.
        every_counter: Record all counters after every request; about 1 KiB a request.

    Raises:
        ConfigError: An option that PyTorch refuses, requests that do not fit together, or a use of a private
            pool at which PyTorch fails.
    """
    if options.memory_fraction is not None and capacity_bytes is None:
        raise ConfigError(
            f"memory_fraction {options.memory_fraction} needs a device with a limit",
            "pass capacity_bytes to take the fraction of",
        )
    done = _core.replay(
        requests.kind,
        requests.block,
        requests.size_bytes,
        requests.stream,
        core_alternatives(requests.alternatives),
        core_pools(requests),
        core_options(options),
        capacity_bytes,
        other_bytes,
        not ascending_addresses,
        on_oom == "drop",
        until,
        every_counter,
    )
    allocated, active, reserved, requested = (Peak(*peak) for peak in done.peaks)
    return Replay(
        timeline=Timeline(done.allocated_bytes, done.active_bytes, done.reserved_bytes, done.requested_bytes),
        peak_allocated=allocated,
        peak_active=active,
        peak_reserved=reserved,
        peak_requested=requested,
        placement=Placement(done.placed_address, done.placed_segment, done.placed_size),
        segment_mempool=done.segment_mempool,
        events=DeviceEvents(
            done.event_action,
            done.event_address,
            done.event_size,
            done.event_stream,
            done.event_mempool,
            done.event_request,
        ),
        statistics=MappingProxyType(done.statistics),
        reserved_by_private_pools=MappingProxyType(done.reserved_by_private_pools),
        counters=done.counters.reshape(-1, len(done.statistics)),
        failures=tuple(OutOfMemory(*failure) for failure in done.failures),
        state=allocator_state(done.state, done.block_request_block),
    )


def _column(values: ArrayLike, name: str) -> Int64:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size > 0 and array.dtype.kind not in "iu"):
        raise ConfigError(
            f"{name} has shape {array.shape} and dtype {array.dtype}", "give one integer for each block"
        )
    column = array.astype(np.int64)
    column.flags.writeable = False
    return column


def core_alternatives(alternatives: Alternatives) -> tuple[Int32, Int64, Int64]:
    """Return the same columns for the core."""
    return alternatives.list, alternatives.begin, alternatives.size_bytes


def core_pools(requests: Requests) -> tuple[Int32, Int32]:
    """Return pools and places of blocks for the core."""
    return requests.mempool, requests.restores


def core_options(options: AllocatorOptions) -> _core.AllocatorOptions:
    """Return the same settings for the core, which knows them by the same names (``for_each_option``)."""
    settings = {field.name: getattr(options, field.name) for field in fields(options)}
    settings["tie_break"] = _TIE_BREAKS[options.tie_break]
    settings["max_split_bytes"] = NEVER if options.max_split_bytes is None else options.max_split_bytes
    return _core.AllocatorOptions(**settings)


def allocator_state(core: _core.AllocatorState, block: Int32) -> AllocatorState:
    """Return the columns of a state of the core, and the replayed block of each of its blocks."""
    return AllocatorState(
        core.segment_address,
        core.segment_size,
        core.segment_stream,
        core.segment_pool,
        core.segment_expandable,
        core.segment_mempool,
        core.segment_id,
        core.block_segment,
        core.block_address,
        core.block_size,
        core.block_requested,
        core.block_state,
        block,
    )
