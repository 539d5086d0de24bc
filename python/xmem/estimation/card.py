"""The number on the card, explained: what ``nvidia-smi`` shows of the process at its highest, as parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.estimation.estimate import CardPart
from xmem.estimation.holders import Holders
from xmem.estimation.verdict import Judged
from xmem.orchestration.matmul.cublas_workspaces import MATRIX_PRODUCTS
from xmem.run.workload import Workload
from xmem.simulation.replay import DeviceAction, Replay
from xmem.trace.attribution import Category
from xmem.trace.trace import Trace

_LIBRARIES = {
    "cublas": "of matrix products",
    "cudnn": "of convolutions and recurrent layers",
    "other": "of other kernels, such as reductions",
}
_RECURRENT = frozenset({"aten::gru", "aten::lstm", "aten::rnn_relu", "aten::rnn_tanh"})


def card_parts(trace: Trace, workload: Workload, holders: Holders, verdict: Judged) -> tuple[CardPart, ...]:
    """Split what the card must have, reserved memory after ``fullest_request``; the parts sum to the device
    peak."""
    replay = verdict.replay
    timeline, at = replay.timeline, fullest_request(replay)
    rows = holders.alive_at(at)
    allocated, requested = int(timeline.allocated_bytes[at]), int(timeline.requested_bytes[at])
    workspaces = rows[workload.category[rows] == Category.WORKSPACE]
    sizes = np.minimum(workload.size_bytes[workspaces], replay.placement.size_bytes[workspaces])
    taken = dict.fromkeys(_LIBRARIES, 0)
    for row, size_bytes in zip(workspaces.tolist(), sizes.tolist(), strict=True):
        taken[_library(trace, int(workload.operator[row]), holders.operator_name(row))] += size_bytes
    cached = _cached_bytes(replay, rows, at)
    fragmentation = replay.peak_reserved.bytes - allocated - cached
    # Where PyTorch's allocator reserved less than the replay, it had less that was free, segments first.
    fewer_segments = min(cached, max(-verdict.missed_bytes, 0))
    fewer_parts = min(fragmentation, max(-verdict.missed_bytes - fewer_segments, 0))
    missed_bytes = verdict.missed_bytes + fewer_segments + fewer_parts
    parts = (
        ("context", verdict.context_bytes, "CUDA context and loaded kernels"),
        ("tensors", requested - sum(taken.values()), "requested by tensors"),
        *((f"{library}_workspaces", taken[library], words) for library, words in _LIBRARIES.items()),
        ("rounding", allocated - requested, "blocks are multiples of 512 bytes, and some are not split"),
        ("fragmentation", fragmentation - fewer_parts, "free parts of segments that are in use"),
        ("cached", cached - fewer_segments, "segments that are free, kept for reuse"),
    )
    beyond = (
        ("not_replayed", missed_bytes, "reserved by PyTorch's allocator, but not by the replay"),
        ("other_card", verdict.other_card_bytes, "what another, fuller GPU of the job holds more"),
    )
    return (
        *(CardPart(name, bytes_, words) for name, bytes_, words in parts),
        *verdict.unreplayed.outside,
        *(CardPart(name, bytes_, words) for name, bytes_, words in beyond if bytes_),
    )


def _library(trace: Trace, innermost: int, outermost: str | None) -> str:
    """Return the library whose kernel takes a workspace, judging by the operators that it runs for."""
    if innermost >= 0 and trace.names[int(trace.events.name[innermost])] in MATRIX_PRODUCTS:
        return "cublas"
    name = outermost or ""
    return "cudnn" if name in _RECURRENT or "conv" in name.lower() else "other"


def fullest_request(replay: Replay) -> int:
    """Return the request with the most allocated memory among those with the most reserved memory."""
    timeline = replay.timeline
    highest = timeline.reserved_bytes == replay.peak_reserved.bytes
    return int(np.argmax(np.where(highest, timeline.allocated_bytes, -1)))


def _cached_bytes(replay: Replay, alive: NDArray[np.intp], at: int) -> int:
    """Return the bytes of segments without any block after a request.

    Each pool has one expandable segment: its free part counts as fragmentation.
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
