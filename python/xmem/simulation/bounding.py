"""Replays requests through allocators other than PyTorch's: those of the core by name, or one written in
Python.

    replay_through("bfc", requests, capacity_bytes=24 * 2**30).peak_reserved.bytes
    replay_through(MyAllocator(), requests).peak_reserved.bytes

The ones of the core run millions of requests a second; one in Python runs as fast as Python calls it. Both
must keep the rules of `Allocator`, and the same tests hold them to these.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.errors import ConfigError
from xmem.records import dataclass
from xmem.simulation.replay import (
    FREE_AT_CHECKPOINT,
    AllocatorOptions,
    Peak,
    RequestKind,
    Requests,
    Timeline,
    core_alternatives,
    core_options,
    core_pools,
)

__all__ = ["Allocator", "AllocatorName", "GaugeReplay", "replay_through"]

AllocatorName = Literal["perfect_reuse", "never_reuse", "device", "bfc"]
"""Allocators of the core: the two bounds of reuse, plain device allocation, TensorFlow's BFC."""

_NAMES: tuple[str, ...] = get_args(AllocatorName)  # in the order of simulation::AllocatorKind


@runtime_checkable
class Allocator(Protocol):
    """An allocator that a deep-learning framework puts between a program and a device; the twin of the C++
    concept.

    Gauges are bytes: requested (as asked) <= allocated (as rounded) <= active (also what waits for another
    stream) <= reserved (held of the device); the first three are 0 when no block is alive.
    """

    def allocate(self, size_bytes: int, stream: int) -> int | None:
        """Return the handle of a block of at least ``size_bytes`` (above 0), unique among living blocks.

        Return None when out of memory; all living blocks are then unchanged.
        """

    def free(self, handle: int) -> None:
        """Take a block back; its memory may be kept for later requests."""

    def empty_cache(self) -> None:
        """Give back to the device what no block needs, where the framework has such a call."""

    @property
    def allocated_bytes(self) -> int:
        """The bytes of living blocks, as rounded."""

    @property
    def active_bytes(self) -> int:
        """Those bytes plus what waits for another stream."""

    @property
    def reserved_bytes(self) -> int:
        """The bytes of the device that it holds."""

    @property
    def requested_bytes(self) -> int:
        """The bytes of living blocks, as requested."""


@dataclass(frozen=True)
class GaugeReplay:
    """The memory that an allocator held after each request.

    Attributes:
        timeline: One row for each request, up to and with the one that failed; no rows where it was not kept.
        peak_allocated: The most of each gauge after a request, and the first request that reached it.
        out_of_memory: The request that failed, where the replay ends; None when all were served.
    """

    timeline: Timeline
    peak_allocated: Peak
    peak_active: Peak
    peak_reserved: Peak
    peak_requested: Peak
    out_of_memory: int | None


def replay_through(
    allocator: AllocatorName | Allocator,
    requests: Requests,
    *,
    options: AllocatorOptions = AllocatorOptions(),  # noqa: B008 (frozen)
    capacity_bytes: int | None = None,
    other_bytes: int = 0,
    keep_timeline: bool = True,
) -> GaugeReplay:
    """Replay requests through an allocator until one fails.

    Args:
        allocator: One of the core by name, or a fresh one of your own.
        requests: Requests from ``make_requests``.
        options: Rounding and segments of the two bounds; the others have no options.
        capacity_bytes: Memory of the device under ``device`` and ``bfc``; None for one without limit. The
            bounds ask no device, and an allocator of your own brings its own.
        other_bytes: Memory that others hold on that device.
        keep_timeline: Without it, only the peaks are kept. An allocator of your own always has one.

    Raises:
        ConfigError: No such allocator, or requests that do not fit together.
    """
    if not isinstance(allocator, str):
        return _replay_in_python(allocator, requests)
    if allocator not in _NAMES:
        raise ConfigError(
            f"unknown allocator {allocator!r}", f"use one of {', '.join(_NAMES)}, or pass an object"
        )
    done = _core.replay_gauges(
        requests.kind,
        requests.block,
        requests.size_bytes,
        requests.stream,
        core_alternatives(requests.alternatives),
        core_pools(requests),
        _NAMES.index(allocator),
        core_options(options),
        capacity_bytes,
        other_bytes,
        keep_timeline,
    )
    timeline = Timeline(done.allocated_bytes, done.active_bytes, done.reserved_bytes, done.requested_bytes)
    allocated, active, reserved, requested = (Peak(*peak) for peak in done.peaks)
    return GaugeReplay(timeline, allocated, active, reserved, requested, done.out_of_memory)


def _replay_in_python(allocator: Allocator, requests: Requests) -> GaugeReplay:
    gauges = np.zeros((4, len(requests)), np.int64)
    handles: dict[int, int] = {}
    took_nothing: set[int] = set()
    choice = _Choice(requests)
    failed = None
    for index, (kind, block) in enumerate(zip(requests.kind.tolist(), requests.block.tolist(), strict=True)):
        if kind == RequestKind.ALLOC:
            was_free = len(requests.restores) > 0 and requests.restores[block] == FREE_AT_CHECKPOINT
            for size in [0] if was_free else choice.sizes(block):
                if size == 0:
                    took_nothing.add(block)
                elif (handle := allocator.allocate(size, int(requests.stream[block]))) is not None:
                    handles[block] = handle
                else:
                    continue
                choice.take(block, size)
                break
            else:
                failed = index
        elif kind == RequestKind.FREE:
            if block in took_nothing:
                took_nothing.remove(block)
            else:
                allocator.free(handles.pop(block))
        elif kind == RequestKind.EMPTY_CACHE:
            allocator.empty_cache()
        gauges[:, index] = (
            allocator.allocated_bytes,
            allocator.active_bytes,
            allocator.reserved_bytes,
            allocator.requested_bytes,
        )
        if failed is not None:
            gauges = gauges[:, : index + 1]
            break
    gauges.flags.writeable = False
    allocated, active, reserved, requested = (_peak(gauge) for gauge in gauges)
    return GaugeReplay(Timeline(*gauges), allocated, active, reserved, requested, failed)


class _Choice:
    """The sizes that a block tries, in order, given what its list of alternatives gave last."""

    def __init__(self, requests: Requests) -> None:
        self._size_bytes = requests.size_bytes
        self._alternatives = requests.alternatives
        self._taken: dict[int, int] = {}

    def sizes(self, block: int) -> list[int]:
        number = self._list(block)
        if number < 0:
            return [int(self._size_bytes[block])]
        sizes: list[int] = self._alternatives.sizes_of(number).tolist()
        return [self._taken[number], *sizes] if number in self._taken else sizes

    def take(self, block: int, size: int) -> None:
        self._taken[self._list(block)] = size

    def _list(self, block: int) -> int:
        return int(self._alternatives.list[block]) if len(self._alternatives.list) else -1


def _peak(gauge: NDArray[np.int64]) -> Peak:
    highest = int(gauge.max(initial=0))
    return Peak(highest, int(np.argmax(gauge)) if highest else -1)
