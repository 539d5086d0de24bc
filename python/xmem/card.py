"""The number on the card, explained: what ``nvidia-smi`` shows of the process at its highest, as parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.attribution import Category
from xmem.estimate_result import CardPart
from xmem.holders import Holders
from xmem.orchestration.workload import Workload
from xmem.simulation import DeviceAction, Replay


def card_parts(
    workload: Workload, holders: Holders, replay: Replay, context_bytes: int
) -> tuple[CardPart, ...]:
    """Split context and reserved memory after ``fullest_request``; the parts sum to the device peak."""
    timeline, at = replay.timeline, fullest_request(replay)
    rows = holders.alive_at(at)
    allocated, requested = int(timeline.allocated_bytes[at]), int(timeline.requested_bytes[at])
    workspaces = rows[workload.category[rows] == Category.WORKSPACE]
    operators = [holders.operator_name(row) or "" for row in workspaces.tolist()]
    convolves = np.array(["conv" in operator.lower() for operator in operators], bool)
    sizes = np.minimum(workload.size_bytes[workspaces], replay.placement.size_bytes[workspaces])
    cudnn, cublas = int(sizes[convolves].sum()), int(sizes[~convolves].sum())
    cached = _cached_bytes(replay, rows, at)
    parts = (
        ("context", context_bytes, "CUDA context and loaded kernels"),
        ("tensors", requested - cudnn - cublas, "asked for by tensors"),
        ("cublas_workspaces", cublas, "of matrix products"),
        ("cudnn_workspaces", cudnn, "of convolutions"),
        ("rounding", allocated - requested, "blocks are multiples of 512 bytes, and some are not split"),
        (
            "fragmentation",
            replay.peak_reserved.bytes - allocated - cached,
            "free parts of segments that are in use",
        ),
        ("cached", cached, "segments that are free, kept for reuse"),
    )
    return tuple(CardPart(name, bytes_, words) for name, bytes_, words in parts)


def fullest_request(replay: Replay) -> int:
    """Of the requests after which most memory is reserved, that after which most of it is allocated."""
    timeline = replay.timeline
    highest = timeline.reserved_bytes == replay.peak_reserved.bytes
    return int(np.argmax(np.where(highest, timeline.allocated_bytes, -1)))


def _cached_bytes(replay: Replay, alive: NDArray[np.intp], at: int) -> int:
    """Bytes of segments that no block is in after a request.

    Expandable segments are one for each pool: what is free of them counts as fragmentation.
    """
    events = replay.events
    count = int(np.searchsorted(events.request, at, side="right"))
    open_: dict[int, tuple[int, int]] = {}  # by address: number in order of creation, and size
    created = 0
    for action, address, size_bytes in zip(
        events.action[:count].tolist(),
        events.address[:count].tolist(),
        events.size_bytes[:count].tolist(),
        strict=True,
    ):
        if action == DeviceAction.SEGMENT_ALLOC:
            open_[address] = (created, size_bytes)
            created += 1
        elif action == DeviceAction.SEGMENT_FREE:
            open_.pop(address, None)
    used = set(replay.placement.segment[alive].tolist())
    return sum(size_bytes for number, size_bytes in open_.values() if number not in used)
