"""The evidence of an estimate: the place of the peak, the holders, what was measured, the problems."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from xmem.estimation.estimate import (
    SLACK,
    SMALLER_PATHS,
    AllocatedPeak,
    Bounds,
    Breakdown,
    Curve,
    Diagnostic,
    Measured,
    OutOfMemoryRecord,
    PathBytes,
    RankPeak,
    SimulationSummary,
    TraceSummary,
)
from xmem.estimation.holders import NO_LINE, OUTSIDE_OF_MODULES, OUTSIDE_OF_OPERATORS, Holders
from xmem.records import dataclass
from xmem.run.job_settings import job_settings
from xmem.run.recorded import Origin, Recorded
from xmem.run.workload import Workload
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.replay import DeviceAction, Replay, RequestKind, Requests
from xmem.simulation.stretches import highest_of_stretches
from xmem.text.units import format_bytes
from xmem.trace.attribution import CATEGORY_LABELS, Attribution, Phase
from xmem.trace.blocks import BlockTable
from xmem.trace.trace import Trace

_GRANULE_BYTES = 512  # the caching allocator's rounding, kMinBlockSize
_GRAVE = 0.01  # share of the measured peak that the replay may miss without a warning
_ALIKE = 0.01
_MOST_PATHS = 1000
_CURVE_POINTS = 200
WHOLE_ITERATION = 2  # optimizer steps that enclose one


@dataclass(frozen=True)
class Witness:
    """Information about instants of a replay from its workload.

    Attributes:
        workload: The blocks that were replayed.
        requests: The sequence of their requests.
        holders: Holder of each block.
    """

    workload: Workload
    requests: Requests
    holders: Holders

    def peak(self, replay: Replay) -> AllocatedPeak:
        """Return the instant of the peak of allocated bytes, the first of equal ones."""
        request = replay.peak_allocated.request
        block = self.peak_block(replay)
        return AllocatedPeak(
            iteration=int(self.workload.iteration[block]),
            phase=Phase(int(self.workload.phase[block])).label,
            operator=self.holders.operator_name(block),
            module=self.holders.module_name(block),
            source_line=self.holders.line_name(block),
            time_ns=int(self.requests.time_ns[request]),
            request_index=request,
            requested_bytes=int(replay.timeline.requested_bytes[request]),
        )

    def peak_block(self, replay: Replay) -> int:
        """Return the row of the workload whose allocation raised the peak."""
        return int(self.requests.block[replay.peak_allocated.request])

    def breakdown(self, replay: Replay) -> Breakdown:
        """Return the holders of the bytes at the peak, by category, module, operator and source line.

        Bytes are those of blocks: requests rounded to 512 bytes, and the slack of blocks that were not split.
        """
        taken = taken_bytes(self.workload, self.requests, replay)
        rows = self.holders.alive_at(replay.peak_allocated.request)
        held, rounded = replay.placement.size_bytes[rows], taken[rows]
        categories = _sums(self.workload.category[rows], rounded, CATEGORY_LABELS)
        slack = int((held - rounded).sum())
        holders = self.holders
        return Breakdown(
            category=categories | ({SLACK: slack} if slack else {}),
            category_peaks=self._category_peaks(taken),
            module=_sums(holders.module[rows], held, holders.modules, OUTSIDE_OF_MODULES),
            operator=_sums(holders.operator[rows], held, holders.operators, OUTSIDE_OF_OPERATORS),
            source_line=_sums(holders.line[rows], held, holders.lines, NO_LINE),
            paths=paths_of(holders, rows, rounded, held - rounded),
        )

    def curve(self, replay: Replay) -> Curve:
        """Return the memory over the run at up to ``_CURVE_POINTS`` instants, including both peaks."""
        allocated = replay.timeline.allocated_bytes
        peaks = (replay.peak_allocated.request, replay.peak_reserved.request)
        shown = {
            *highest_of_stretches(allocated, _CURVE_POINTS - len(peaks)).tolist(),
            *(peak for peak in peaks if peak >= 0),
        }
        at = np.array(sorted(shown), np.intp)
        return Curve(
            time_ns=tuple(self.requests.time_ns[at].tolist()),
            allocated_bytes=tuple(allocated[at].tolist()),
            reserved_bytes=tuple(replay.timeline.reserved_bytes[at].tolist()),
        )

    def simulation(self, replay: Replay, failed: Replay | None, bounds: Bounds) -> SimulationSummary:
        """Return the activity of the allocator, in the terms of ``torch.cuda.memory_stats``."""
        shown = failed or replay
        at = replay.peak_reserved.request
        so_far = replay.events.action[replay.events.request <= at]
        opened = int((so_far == DeviceAction.SEGMENT_ALLOC).sum())
        closed = int((so_far == DeviceAction.SEGMENT_FREE).sum())
        timeline = replay.timeline
        return SimulationSummary(
            segments=opened - closed,
            num_alloc_retries=shown.statistics["num_alloc_retries"],
            num_ooms=shown.statistics["num_ooms"],
            fragmentation_bytes=int(timeline.reserved_bytes[at] - timeline.allocated_bytes[at]),
            bounds=bounds,
            oom=None if failed is None else self._out_of_memory(failed),
        )

    def _out_of_memory(self, failed: Replay) -> OutOfMemoryRecord:
        assert failed.oom is not None
        block = int(self.requests.block[failed.oom.request])
        return OutOfMemoryRecord(
            request_index=failed.oom.request,
            requested_bytes=failed.oom.requested_bytes,
            device_free_bytes=failed.oom.device_free_bytes,
            operator=self.holders.operator_name(block),
            module=self.holders.module_name(block),
            source_line=self.holders.line_name(block),
            iteration=int(self.workload.iteration[block]),
            phase=Phase(int(self.workload.phase[block])).label,
        )

    def _category_peaks(self, taken: NDArray[np.int64]) -> dict[str, int]:
        """Return the most that each category held at any one time, in rounded bytes."""
        block = self.requests.block
        sign = np.where(self.requests.kind == RequestKind.ALLOC, 1, -1)
        change = sign * taken[block]
        category = self.workload.category[block]
        peaks = {
            label: int(np.cumsum(change[category == value]).max(initial=0))
            for value, label in enumerate(CATEGORY_LABELS)
        }
        return {label: peak for label, peak in peaks.items() if peak > 0}


def taken_bytes(workload: Workload, requests: Requests, replay: Replay) -> NDArray[np.int64]:
    """Return the rounded bytes of each block without slack, for the alternative that it took if any."""
    rounded = -(-workload.size_bytes // _GRANULE_BYTES) * _GRANULE_BYTES
    if len(requests.alternatives.list) == 0:
        return rounded
    return np.minimum(rounded, np.maximum(replay.placement.size_bytes, 0))


def paths_of(
    holders: Holders, rows: NDArray[np.intp], taken: NDArray[np.int64], slack: NDArray[np.int64]
) -> tuple[PathBytes, ...]:
    """Sum the bytes of some blocks by everything known about their holders, most first.

    Args:
        holders: Holder of each block.
        rows: Rows of the workload.
        taken: int64 bytes of each of the rows.
        slack: int64 bytes of each of the rows beyond these.
    """
    key = holders.path_key(with_persistence=True)[rows]
    _, first, which, blocks = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    bytes_of = np.zeros(len(first), np.int64)
    slack_of = np.zeros(len(first), np.int64)
    np.add.at(bytes_of, which, taken)
    np.add.at(slack_of, which, slack)
    order = np.argsort(-(bytes_of + slack_of), kind="stable")
    found = [
        PathBytes(
            category=CATEGORY_LABELS[holders.category[row]],
            phase=Phase(int(holders.phase[row])).label,
            persistent=bool(holders.persistent[row]),
            module=holders.module_name(row),
            operator=holders.operator_name(row),
            source_line=holders.line_name(row),
            bytes=int(bytes_of[path]),
            slack_bytes=int(slack_of[path]),
            blocks=int(blocks[path]),
        )
        for path in order[:_MOST_PATHS]
        for row in [int(rows[first[path]])]
    ]
    rest = order[_MOST_PATHS:]
    return (
        *found,
        *_merged(holders, rows[first[rest]], bytes_of[rest], slack_of[rest], blocks[rest]),
    )


def _merged(
    holders: Holders,
    rows: NDArray[np.intp],
    taken: NDArray[np.int64],
    slack: NDArray[np.int64],
    blocks: NDArray[np.intp],
) -> Iterator[PathBytes]:
    """Merge the smallest paths by category, persistent ones separately."""
    category, persistent = holders.category[rows], holders.persistent[rows]
    for value, outlives in product(sorted(set(category.tolist())), (False, True)):
        of_it = (category == value) & (persistent == outlives)
        if not of_it.any():
            continue
        yield PathBytes(
            category=CATEGORY_LABELS[value],
            phase=SMALLER_PATHS,
            persistent=outlives,
            module=SMALLER_PATHS,
            operator=None,
            source_line=None,
            bytes=int(taken[of_it].sum()),
            slack_bytes=int(slack[of_it].sum()),
            blocks=int(blocks[of_it].sum()),
        )


def has_convolutions(recorded: Recorded) -> bool:
    """Return whether a job has convolutions, whose workspaces are an uncertainty that other jobs lack."""
    return bool(recorded.operators.rows_named(_is_convolution).any())


def _is_convolution(operator: str) -> bool:
    return operator.startswith(("aten::conv", "aten::_conv", "aten::mkldnn_conv"))


def _sums(
    keys: NDArray[np.integer], bytes_: NDArray[np.int64], names: Sequence[str], missing: str = ""
) -> dict[str, int]:
    """Sum bytes by name, most first; keys of -1 count under the name for missing ones."""
    totals: dict[str, int] = {}
    found, where = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(found), np.int64)
    np.add.at(sums, where, bytes_)
    order = np.argsort(-sums, kind="stable")
    for key, total in zip(found[order].tolist(), sums[order].tolist(), strict=True):
        name = (names[key] if key >= 0 else "") or missing
        totals[name] = totals.get(name, 0) + total
    return totals


def diagnostics(trace: Trace, blocks: BlockTable) -> tuple[Diagnostic, ...]:
    """Return the problems of the input."""
    return tuple(
        Diagnostic(
            kind=problem.kind,
            severity="info" if problem.severity == "info" else "data_loss",
            count=problem.count,
            first_byte_offset=problem.first_byte_offset,
            message=problem.message,
        )
        for problem in [*trace.problems, *blocks.problems]
    )


def trace_summary(trace: Trace, attribution: Attribution) -> TraceSummary:
    """Return a summary of the trace that the estimate rests on."""
    captured = trace.is_captured
    return TraceSummary(
        path=_without_home(trace.path or ""),
        bytes=trace.bytes,
        events=trace.counts,
        iterations=trace.notes.iterations if captured else attribution.optimizer_steps,
        source="capture" if captured else "foreign",
        command=trace.notes.argv,
    )


def _without_home(path: str) -> str:
    """Return a path with ``~`` for the user's home folder, as it may be handed on."""
    home = os.environ.get("HOME", "").rstrip("/")
    return f"~{path.removeprefix(home)}" if home and path.startswith(f"{home}/") else path


def has_interval(recorded: Recorded) -> bool:
    """Return whether there is evidence for an interval of a trace of this kind.

    A trace that others recorded shows a part of a run. Two steps of an optimizer enclose a whole iteration
    with gradients and state; what lies beyond less than that is not known. On a GPU, the totals of PyTorch's
    allocator say what was there before.
    """
    if recorded.origin not in (Origin.FOREIGN_CPU, Origin.FOREIGN_GPU):
        return True
    if len(recorded.processes) > 1:
        return False
    has_totals = recorded.origin is Origin.FOREIGN_CPU or recorded.allocator is not None
    return has_totals and recorded.attribution.optimizer_steps >= WHOLE_ITERATION


def measured(recorded: Recorded, replayed: Replay, options: AllocatorOptions) -> Measured | None:
    """Return the allocator's own figures of a run on the phantom GPU, and whether the replay reached them."""
    notes = recorded.allocator
    traced = None if notes is None else notes.busiest
    if notes is None or traced is None:
        return None
    cards = {card.card: card.peak_bytes for card in notes.cards}
    ranks = tuple(
        RankPeak(
            rank=rank.rank,
            device=row.device,
            peak_reserved_bytes=row.peak_reserved_bytes,
            peak_allocated_bytes=row.peak_allocated_bytes,
            card_peak_bytes=-1 if row.card is None else cards.get(row.card, -1),
            place=", ".join(f"{place.name} {place.index}/{place.size}" for place in rank.place),
        )
        for rank in notes.ranks
        for row in rank.devices
    )
    same_rules = options == job_settings(recorded.trace).options
    return Measured(
        peak_reserved_bytes=traced.peak_reserved_bytes,
        peak_allocated_bytes=traced.peak_allocated_bytes,
        replay_agrees=(
            (replayed.peak_reserved.bytes, replayed.peak_allocated.bytes)
            == (traced.peak_reserved_bytes, traced.peak_allocated_bytes)
            if same_rules
            else None
        ),
        ranks=ranks,
        card_peak_bytes=-1 if traced.card is None else cards.get(traced.card, -1),
    )


def disagreement(recorded: Recorded, measured: Measured | None, replayed: Replay) -> Iterator[Diagnostic]:
    """Describe the error of xMem's own replay where PyTorch's allocator counted otherwise.

    A recording that begins in the middle of a run cannot agree: it does not know the earlier segments.
    """
    if measured is None or measured.replay_agrees is not False:
        return
    counted, ours = measured.peak_reserved_bytes, replayed.peak_reserved.bytes
    if recorded.origin is not Origin.PHANTOM:
        if counted != ours and recorded.origin is Origin.FOREIGN_GPU:
            yield Diagnostic(
                kind="memory_before_the_trace",
                severity="info",
                count=1,
                first_byte_offset=-1,
                message=f"PyTorch's own allocator reserved at most {format_bytes(counted)}, but the replay "
                f"of this trace {format_bytes(ours)}: the trace begins in the middle of a run, so the "
                "estimate counts what the allocator held",
            )
        return
    grave = abs(ours - counted) > _GRAVE * counted
    yield Diagnostic(
        kind="replay_disagrees",
        severity="error" if grave else "info",
        count=1,
        first_byte_offset=-1,
        message=f"PyTorch's own allocator reserved at most {format_bytes(counted)}, but the replay of the "
        f"same requests {format_bytes(ours)}; the estimate counts the larger one"
        + ("; this is a bug in xMem: please report it with the trace (--keep-trace FILE)" if grave else ""),
    )


def spread_of_iterations(trace: Trace, workload: Workload, requests: Requests, replay: Replay) -> int:
    """Return by how many bytes the iterations' peaks of allocated memory differ, without the first one.

    The first iteration has no optimizer state yet. Where the others differ, batches have different sizes, and
    a later one may need more than any that was seen. Differences of less than 1% of the peak count as none,
    as does any difference if the script was recorded to its end, since nothing comes later.
    """
    if trace.notes.script_ended:
        return 0
    peaks = _peaks_of_iterations(workload, requests, replay)[1:]
    if len(peaks) < 2 or peaks.max() - peaks.min() < _ALIKE * peaks.max():
        return 0
    return int(peaks.max() - peaks.min())


def _peaks_of_iterations(workload: Workload, requests: Requests, replay: Replay) -> NDArray[np.int64]:
    allocations = np.flatnonzero(requests.kind == RequestKind.ALLOC)
    iteration = workload.iteration[requests.block[allocations]]
    inside = iteration >= 0
    if not inside.any():
        return np.zeros(0, np.int64)
    peaks = np.zeros(int(iteration.max()) + 1, np.int64)
    np.maximum.at(peaks, iteration[inside], replay.timeline.allocated_bytes[allocations[inside]])
    return peaks
