"""Interval of the need: what the estimate leaves open, and what measured runs of its kind showed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from xmem.estimation import calibration, evidence
from xmem.estimation.analysis import Stages
from xmem.estimation.estimate import Bounds, Interval
from xmem.estimation.open_sizes import left_open
from xmem.estimation.verdict import Judged
from xmem.run.job_settings import job_settings
from xmem.run.recorded import Origin
from xmem.simulation.replay import replay
from xmem.trace.notes import Doubt, Mode

# What a log or a measurement of a real machine showed was between half and all of what the model says.
_UNKNOWN_SHARE_OF_NCCL = 0.5

# A trace of a part of a run does not show how the iterations before and after it split the segments: one of
# kLargeBuffer (torch 2.13, CUDACachingAllocator.cpp) more or less.
_SEGMENT_BYTES = 20 << 20

# By what share the truth may lie below and above estimates of runs on the CPU with a doubt, as it did at most
# for scripts where nothing else was off, torch 2.12: 7 with graphs of gradients (physics-informed networks,
# gradient penalties, meta-learning, Hessians, forces), 3 with transforms (gradients of single samples).
_SHARES_OF_DOUBTS: dict[Doubt, tuple[float, float]] = {
    "graphs_of_gradients": (0.07, 0.07),
    "transforms": (0.7, 0.0),
}

_MEASURED = "counted by PyTorch's own allocator while the trace was recorded"
_AND_A_SEGMENT = ", and one segment more for the rest of the run"


def interval_of(stages: Stages, verdict: Judged, bounds: Bounds, spread_bytes: int) -> Interval | None:
    """Return the interval of the device peak, based on the measured need of runs estimated in the same way.

    A trace of a real GPU in which PyTorch's allocator gave its totals holds the measurement itself. Traces
    that leave open what the run needed beside them have no interval (`evidence.has_interval`), nor have those
    of the CPU by others if intervals of their kind do not hold for libraries that were left out.

    Args:
        stages: Stages of the run.
        verdict: Memory that the card must have.
        bounds: Bounds of the allocator.
        spread_bytes: Difference between iterations of the run.
    """
    if not evidence.has_interval(stages.recorded) or not _is_calibrated(stages):
        return None
    if _is_as_measured(stages, verdict):
        is_part = stages.recorded.origin is Origin.FOREIGN_GPU
        high_bytes = verdict.need_bytes + spread_bytes + _SEGMENT_BYTES * is_part
        basis = f"{_MEASURED}{_AND_A_SEGMENT if is_part else ''}"
        return Interval(stages.question.confidence, verdict.need_bytes, high_bytes, basis)
    if stages.warm is not None and not stages.warm.agrees:
        return None
    reserved_bytes = verdict.reserved_bytes
    least_bytes, most_bytes = left_open_by(stages, verdict, bounds, spread_bytes)
    way, kind = way_of(stages)
    between = calibration.interval(
        reserved_bytes,
        way=way,
        kind=kind,
        confidence=stages.question.confidence,
        context_bytes=verdict.beside_bytes,
        least_bytes=least_bytes,
        most_bytes=most_bytes,
        bounds=bounds,
    )
    between = replace(
        between,
        low_bytes=min(between.low_bytes, verdict.need_bytes),
        high_bytes=max(stages.unreplayed.fullest.of(between.high_bytes), verdict.need_bytes),
    )
    return _with_nccl(between, verdict)


def _is_calibrated(stages: Stages) -> bool:
    """Return whether intervals were held against the truth of libraries that they were not made from."""
    return stages.recorded.origin is not Origin.FOREIGN_CPU or calibration.is_calibrated(*way_of(stages))


def not_calibrated(stages: Stages) -> Iterator[str]:
    """Explain in words why a trace of this kind has no interval."""
    if _is_calibrated(stages) or not evidence.has_interval(stages.recorded):
        return
    way, kind = way_of(stages)
    yield (
        "there is no interval: estimates of such traces were held against measured needs, and bounds made "
        "from some libraries did not hold for the others often enough"
        + (
            "; record it with record_shapes=True"
            if way == "foreign_without_shapes" and calibration.is_calibrated("foreign", kind)
            else ""
        )
    )


def left_open_by(
    stages: Stages, verdict: Judged, bounds: Bounds, spread_bytes: int
) -> tuple[int | None, int | None]:
    """Return the least and the largest reserved memory that the estimate itself leaves open, before what
    measured runs of its kind showed; None where that is the estimate.

    Args:
        stages: Stages of the run.
        verdict: Memory that the card must have.
        bounds: Bounds of the allocator.
        spread_bytes: Difference between iterations of the run.
    """
    unlimited_bytes = stages.unlimited.peak_reserved.bytes
    least_bytes, most_bytes = left_open(unlimited_bytes, stages.scaling, stages.convolution_workspaces)
    less_bytes, more_bytes = stages.open_recurrent
    if more_bytes:
        least_bytes = max((unlimited_bytes if least_bytes is None else least_bytes) - less_bytes, 0)
        most_bytes = (unlimited_bytes if most_bytes is None else most_bytes) + more_bytes
    reserved_bytes = verdict.reserved_bytes
    if verdict.missed_bytes:  # the result of xMem's replay, and of PyTorch's own allocator
        least_bytes = min(unlimited_bytes if least_bytes is None else least_bytes, unlimited_bytes)
        most_bytes = max(reserved_bytes, stages.unreplayed.allocator.of(most_bytes or unlimited_bytes))
    elif 0 < stages.unreplayed.allocator.seen_bytes < stages.unreplayed.allocator.instead_of_bytes:
        least_bytes = min(stages.unreplayed.allocator.seen_bytes, least_bytes or reserved_bytes)
    if stages.recorded.origin is Origin.FOREIGN_CPU:
        least_bytes = max(bounds.perfect_reuse_bytes, (least_bytes or reserved_bytes) - _SEGMENT_BYTES)
        most_bytes = max(most_bytes or 0, reserved_bytes) + _SEGMENT_BYTES
    other_bytes = _placed_the_other_way(stages)
    if other_bytes is not None:
        least_bytes = min(least_bytes or unlimited_bytes, other_bytes)
        most_bytes = max(most_bytes or reserved_bytes, other_bytes)
    for less, more in map(_SHARES_OF_DOUBTS.__getitem__, stages.recorded.notes.doubts):
        least_bytes = int(min(least_bytes or reserved_bytes, reserved_bytes) - less * reserved_bytes)
        most_bytes = int(max(most_bytes or 0, reserved_bytes) + more * reserved_bytes)
    if stages.warm is not None:
        opened = stages.warm.open(stages.workload, stages.settings.options)
        least_bytes, most_bytes = opened.least_bytes, opened.most_bytes
    if spread_bytes:
        most_bytes = max(most_bytes or 0, reserved_bytes) + spread_bytes
    return least_bytes, most_bytes


def _placed_the_other_way(stages: Stages) -> int | None:
    """Return the reserved memory if the driver places segments from the bottom up, which depends on the
    machine; None where no tie among free blocks is decided by address.
    """
    options = stages.settings.options
    if options.tie_break != "address" or options.expandable_segments or stages.warm is not None:
        return None
    return replay(stages.requests, options=options, ascending_addresses=True).peak_reserved.bytes


def _is_as_measured(stages: Stages, verdict: Judged) -> bool:
    """Return whether the answer is about a run on a real GPU as it was, and its allocator counted."""
    counted = stages.recorded.allocator
    traced = None if counted is None else counted.busiest
    return (
        stages.recorded.origin in (Origin.FOREIGN_GPU, Origin.RECORDED_GPU)
        and traced is not None
        and not stages.what_if
        and stages.settings.options == job_settings(stages.trace).options
        and verdict.reserved_bytes == traced.peak_reserved_bytes
    )


def _with_nccl(between: Interval, verdict: Judged) -> Interval:
    """Widen an interval by what is not known of NCCL's buffers: the number of its channels."""
    nccl_bytes = sum(part.bytes for part in verdict.unreplayed.outside if part.name == "nccl")
    if not nccl_bytes:
        return between
    unknown_bytes = int(_UNKNOWN_SHARE_OF_NCCL * nccl_bytes)
    return replace(
        between,
        low_bytes=between.low_bytes - unknown_bytes,
        high_bytes=between.high_bytes + unknown_bytes,
        basis=f"{between.basis}, plus half of NCCL's buffers, which depend on the machine",
    )


def way_of(stages: Stages) -> tuple[str, str]:
    """Return the way of estimating and the kind of job by which the calibration tells runs apart."""
    way = _way(stages)
    has_open_workspaces = way != "recorded" and evidence.has_convolutions(stages.recorded)
    return way, "convolutional" if has_open_workspaces else "other"


def _way(stages: Stages) -> str:
    """Return the way of estimating by which the calibration tells runs apart."""
    origin = stages.recorded.origin
    if origin is Origin.PHANTOM:
        return "phantom"
    if origin is Origin.FOREIGN_CPU:
        has_shapes = bool((stages.trace.events.inputs >= 0).any())
        return "foreign" if has_shapes else "foreign_without_shapes"
    if origin.on_cpu:
        if stages.scaling is not None:
            return "fitted"
        return "fake" if stages.trace.notes.mode == Mode.FAKE else "cpu"
    if stages.warm is None:
        return "unplaced"
    return "recorded"  # on a GPU, from the allocator that the trace began with
