"""The segments of the allocator at the peak of reserved memory, and their contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from xmem.estimation.card import fullest_request
from xmem.records import dataclass
from xmem.simulation.replay import AllocatorState, BlockState, replay

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis
    from xmem.estimation.holders import Holders

MOST_SEGMENTS = 1000
_FINEST = 1 / 1000
"""Neighbours of one category that are each smaller than this part of the widest segment are drawn as one."""
FREE = 255
"""Category of a piece that is free."""


@dataclass(frozen=True)
class SegmentMap:
    """Segments, largest first, and their pieces in order of address.

    Attributes:
        segment_bytes: int64.
        small_pool: bool, segments for blocks of up to 1 MiB.
        piece_segment: int64, row of the segment columns.
        piece_offset_bytes: int64, from the beginning of the segment.
        piece_bytes: int64.
        piece_category: uint8, a `Category` or ``FREE``.
        piece_block: int64, row of the workload, -1 where it is free or stands for several.
        piece_blocks: int64, number of blocks that it stands for.
        segments_left_out: Number of smaller segments that are not shown.
        bytes_left_out: Bytes of these segments.
        free_bytes: Bytes of all free pieces, including those of segments left out.
        largest_free_bytes: Largest block that could be allocated without asking the device for memory.
    """

    segment_bytes: NDArray[np.int64]
    small_pool: NDArray[np.bool_]
    piece_segment: NDArray[np.int64]
    piece_offset_bytes: NDArray[np.int64]
    piece_bytes: NDArray[np.int64]
    piece_category: NDArray[np.uint8]
    piece_block: NDArray[np.int64]
    piece_blocks: NDArray[np.int64]
    segments_left_out: int
    bytes_left_out: int
    free_bytes: int
    largest_free_bytes: int


def segment_map_of(analysis: Analysis, holders: Holders) -> SegmentMap:
    """Replay up to the fullest instant at the peak of reserved memory and map the segments' contents."""
    return _mapped(_state_at_peak(analysis), holders)


def _state_at_peak(analysis: Analysis) -> AllocatorState:
    limited = analysis.device if analysis.replay is not analysis.stages.unlimited else None
    return replay(
        analysis.stages.requests,
        options=analysis.stages.settings.options,
        capacity_bytes=None if limited is None else limited.total_memory_bytes,
        other_bytes=0 if limited is None else analysis.verdict.taken_bytes,
        until=fullest_request(analysis.replay),
    ).state


def _mapped(state: AllocatorState, holders: Holders) -> SegmentMap:
    order = np.argsort(-state.segment_bytes, kind="stable")
    shown = order[:MOST_SEGMENTS]
    row = np.full(len(order), -1, np.int64)
    row[shown] = np.arange(len(shown))

    free = state.block_state == BlockState.FREE
    known = state.block >= 0
    category = np.zeros(len(state.block), np.uint8)
    category[known] = holders.category[state.block[known]]
    category[free] = FREE
    segment = row[state.block_segment]
    offset = state.block_address - state.segment_address[state.block_segment]

    inside = np.flatnonzero(segment >= 0)
    inside = inside[np.lexsort((offset[inside], segment[inside]))]
    widest = int(state.segment_bytes.max(initial=1))
    tiny = (state.block_bytes[inside] < widest * _FINEST) & ~free[inside]
    alike = np.zeros(len(inside), np.bool_)
    alike[1:] = (
        tiny[1:]
        & tiny[:-1]
        & (segment[inside[1:]] == segment[inside[:-1]])
        & (category[inside[1:]] == category[inside[:-1]])
    )
    begin = np.flatnonzero(~alike)
    blocks = np.diff(np.append(begin, len(inside)))
    first = inside[begin]
    free_bytes = state.block_bytes[free]
    return SegmentMap(
        segment_bytes=state.segment_bytes[shown],
        small_pool=state.segment_pool[shown] == 0,
        piece_segment=segment[first],
        piece_offset_bytes=offset[first],
        piece_bytes=np.add.reduceat(state.block_bytes[inside], begin)
        if len(begin)
        else state.block_bytes[:0],
        piece_category=category[first],
        piece_block=np.where((blocks == 1) & known[first], state.block[first], -1).astype(np.int64),
        piece_blocks=np.where(free[first], 0, blocks).astype(np.int64),
        segments_left_out=len(order) - len(shown),
        bytes_left_out=int(state.segment_bytes[order[MOST_SEGMENTS:]].sum()),
        free_bytes=int(free_bytes.sum()),
        largest_free_bytes=int(free_bytes.max(initial=0)),
    )
