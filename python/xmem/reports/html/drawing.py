"""Data of the page's drawings: that of its script, and the same at the peak for readers without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xmem.breakdown.bricks import Bricks, bricks_around_peak
from xmem.breakdown.composition import Composition, composition_at
from xmem.breakdown.curve import Span, iterations_of, phases_of, shown_requests
from xmem.breakdown.segment_map import FREE, SegmentMap, segment_map_of
from xmem.estimation.holders import OUTSIDE_OF_MODULES
from xmem.records import dataclass
from xmem.reports.html.packing import UNIT_BYTES, NamesUsed, pack, pack_units
from xmem.reports.html.static_plot import STACKED, StaticPlot, static_plot
from xmem.text.units import format_bytes
from xmem.trace.attribution import CATEGORY_LABELS, PHASE_LABELS

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis
    from xmem.estimation.holders import Holders

_MOST_MODULES = 60
_MODULES_LISTED = 15
_OTHER_MODULES = "(other modules)"


class Part(NamedTuple):
    """A category or module, and what it holds at the peak."""

    name: str
    bytes: int
    share: float


class AtPeak(NamedTuple):
    """The holders of the memory at the peak, largest first."""

    categories: list[Part]
    modules: list[Part]


@dataclass(frozen=True)
class Drawing:
    """Contents of the page's drawings.

    Attributes:
        data: Data for the page's script.
        plot: The curve without a script.
        at_peak: The composition at the peak without a script.
        categories: Categories that ever hold memory, from the bottom of the stack to its top.
        bricks_text: Text on the blocks that the bricks leave out.
        segments_text: Description of the segment map.
    """

    data: Mapping[str, Any]
    plot: StaticPlot
    at_peak: AtPeak
    categories: list[str]
    bricks_text: str
    segments_text: str


def drawing_of(analysis: Analysis, holders: Holders) -> Drawing:
    """Choose the instants, compose them, and pack the data that the script draws."""
    stages, replay = analysis.stages, analysis.replay
    requests = stages.requests
    shown = shown_requests(replay)
    composition = composition_at(shown, requests, replay, holders, most_modules=_MOST_MODULES)
    peak = int(np.searchsorted(shown, replay.peak_allocated.request))
    modules = [
        *(holders.modules[module] for module in composition.modules),
        _OTHER_MODULES,
        OUTSIDE_OF_MODULES,
    ]
    seconds = (requests.time_ns[: len(replay.timeline.allocated_bytes)] - int(requests.time_ns[0])) / 1e9
    iterations = iterations_of(requests, stages.workload)
    phases = phases_of(requests, stages.workload)
    bricks = bricks_around_peak(requests, replay, stages.workload, holders)
    segments = segment_map_of(analysis, holders)
    usable_bytes = None if analysis.device is None else analysis.device.usable_bytes

    blocks = np.union1d(bricks.blocks, segments.piece_block[segments.piece_block >= 0])
    used = {name: NamesUsed(getattr(holders, name)) for name in ("modules", "operators", "lines")}
    block_columns = _block_columns(analysis, holders, blocks, used)
    data = {
        "unit_bytes": UNIT_BYTES,
        "requests": len(requests),
        "categories": CATEGORY_LABELS,
        "phase_labels": PHASE_LABELS,
        "stack": [int(category) for category in STACKED],
        "free": FREE,
        "peak": peak,
        "capacity_bytes": usable_bytes,
        "capacity_text": "" if analysis.device is None else _capacity_text(analysis),
        "modules_listed": _MODULES_LISTED,
        "module_rows": modules,
        "curve": _curve_columns(analysis, shown, seconds, composition),
        "iterations": _span_rows(iterations, seconds),
        "phases": _span_rows(phases, seconds),
        "blocks": block_columns,
        "names": {name: names.names for name, names in used.items()},
        "bricks": {
            "request": pack(bricks.request, "u32"),
            "by_category": pack_units(bricks.by_category.ravel()),
            "block": pack(np.searchsorted(blocks, bricks.blocks), "u32"),
        },
        "segments": _segment_columns(segments, blocks),
    }
    return Drawing(
        data=data,
        plot=static_plot(
            seconds[shown],
            composition.by_category,
            replay.timeline.reserved_bytes[shown],
            [(span, float(seconds[span.first]), float(seconds[span.last])) for span in iterations],
            peak=peak,
            capacity_bytes=usable_bytes,
        ),
        at_peak=AtPeak(
            _parts(CATEGORY_LABELS, composition.by_category[:, peak]),
            _parts(modules, composition.by_module[:, peak])[:_MODULES_LISTED],
        ),
        categories=[category.label for category in STACKED if composition.by_category[int(category)].any()],
        bricks_text=_bricks_text(bricks),
        segments_text=_segments_text(segments),
    )


def _curve_columns(
    analysis: Analysis, shown: NDArray[np.intp], seconds: NDArray[np.float64], composition: Composition
) -> dict[str, Any]:
    timeline = analysis.replay.timeline
    allocated, active = timeline.allocated_bytes[shown], timeline.active_bytes[shown]
    return {
        "request": pack(shown, "u32"),
        "time_s": pack(seconds[shown], "f64"),
        "allocated": pack_units(allocated),
        "active": None if np.array_equal(allocated, active) else pack_units(active),
        "reserved": pack_units(timeline.reserved_bytes[shown]),
        "by_category": pack_units(composition.by_category.ravel()),
        "by_module": pack_units(composition.by_module.ravel()),
    }


def _block_columns(
    analysis: Analysis, holders: Holders, blocks: NDArray[np.int64], used: Mapping[str, NamesUsed]
) -> dict[str, Any]:
    workload = analysis.stages.workload
    return {
        "size": pack_units(np.maximum(analysis.replay.placement.size_bytes[blocks], 0)),
        "category": pack(holders.category[blocks], "u8"),
        "phase": pack(holders.phase[blocks], "u8"),
        "iteration": pack(workload.iteration[blocks], "i32"),
        "persistent": pack(holders.persistent[blocks], "u8"),
        "module": pack(used["modules"].numbers_of(holders.module[blocks]), "i32"),
        "operator": pack(used["operators"].numbers_of(holders.operator[blocks]), "i32"),
        "line": pack(used["lines"].numbers_of(holders.line[blocks]), "i32"),
        "alloc_request": pack(holders.alloc_request[blocks], "u32"),
        "free_request": pack(holders.free_request[blocks], "u32"),
    }


def _segment_columns(segments: SegmentMap, blocks: NDArray[np.int64]) -> dict[str, Any]:
    known = segments.piece_block >= 0
    return {
        "bytes": pack_units(segments.segment_bytes),
        "small": pack(segments.small_pool, "u8"),
        "piece_segment": pack(segments.piece_segment, "u32"),
        "piece_offset": pack_units(segments.piece_offset_bytes),
        "piece_bytes": pack_units(segments.piece_bytes),
        "piece_category": pack(segments.piece_category, "u8"),
        "piece_block": pack(np.where(known, np.searchsorted(blocks, segments.piece_block), -1), "i32"),
        "piece_blocks": pack(segments.piece_blocks, "u32"),
    }


def _span_rows(spans: Sequence[Span], seconds: NDArray[np.float64]) -> list[dict[str, Any]]:
    return [
        {
            "label": span.label,
            "first": span.first,
            "last": span.last,
            "begin_s": float(seconds[span.first]),
            "end_s": float(seconds[span.last]),
        }
        for span in spans
    ]


def _parts(names: Sequence[str], bytes_: NDArray[np.int64]) -> list[Part]:
    total = max(int(bytes_.sum()), 1)
    order = np.argsort(-bytes_, kind="stable")
    return [
        Part(names[row], int(bytes_[row]), float(bytes_[row]) / total)
        for row in order.tolist()
        if bytes_[row]
    ]


def _capacity_text(analysis: Analysis) -> str:
    assert analysis.device is not None
    device = analysis.device
    return f"{device.name}: {format_bytes(device.usable_bytes)} without the CUDA context"


def _bricks_text(bricks: Bricks) -> str:
    if bricks.left_out == 0:
        return f"All {len(bricks.blocks):,} of the window are drawn."
    return (
        f"The {len(bricks.blocks):,} largest of the window are drawn; "
        f"the other {bricks.left_out:,} are summed by category, paler, on top."
    )


def _segments_text(segments: SegmentMap) -> str:
    count = len(segments.segment_bytes) + segments.segments_left_out
    total = int(segments.segment_bytes.sum()) + segments.bytes_left_out
    sentences = [
        f"{count:,} segments, {format_bytes(total)} together.",
        f"{format_bytes(segments.free_bytes)} in them are free, "
        f"the largest free block has {format_bytes(segments.largest_free_bytes)}.",
    ]
    if segments.segments_left_out:
        left_out = format_bytes(segments.bytes_left_out)
        sentences.append(f"The {segments.segments_left_out:,} smallest, {left_out}, are not drawn.")
    return " ".join(sentences)
