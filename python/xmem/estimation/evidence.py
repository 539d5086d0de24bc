"""The evidence of an estimate: the place of the peak, the holders, the assumptions, the problems."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from xmem.devices.gpus import Device
from xmem.errors import ConfigError
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
from xmem.estimation.gpu_speed import notes_on_gpu_speed
from xmem.estimation.holders import NO_LINE, OUTSIDE_OF_MODULES, OUTSIDE_OF_OPERATORS, Holders
from xmem.estimation.need import WithoutLimit
from xmem.estimation.open_recurrent import notes_on_recurrent_layers
from xmem.orchestration.lifetimes.given_weights import given_weights
from xmem.records import dataclass
from xmem.run.job_settings import JobSettings, job_settings
from xmem.run.recorded import Origin, Recorded
from xmem.run.workload import Workload
from xmem.simulation.alloc_conf import RULE_RELEASES, AllocatorOptions
from xmem.simulation.replay import DeviceAction, Replay, RequestKind, Requests
from xmem.simulation.several_settings import peaks_reserved
from xmem.simulation.stretches import highest_of_stretches
from xmem.text.units import format_bytes
from xmem.trace.attribution import CATEGORY_LABELS, Attribution, Phase, trains
from xmem.trace.blocks import NEVER, BlockTable
from xmem.trace.notes import CardNote, Mode, PhantomNotes, ValueRead
from xmem.trace.trace import Trace

_GRANULE_BYTES = 512  # the caching allocator's rounding, kMinBlockSize
_MOST_LINES = 5
_GRAVE = 0.01  # share of the measured peak that the replay may miss without a warning
_ALIKE = 0.01
_MOST_PATHS = 1000
_CURVE_POINTS = 200
_WHOLE_ITERATION = 2  # optimizer steps that enclose one
_COLLECTIVES = ("nccl:", "gloo:", "c10d::", "record_param_comms")


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


def _values_read(rows: Sequence[ValueRead]) -> Iterator[str]:
    """Describe where the script acted on values that the phantom GPU does not have."""
    said = {
        "sizes": "selects elements by GPU values, which are unknown: a typical share was taken as selected",
        "decisions": "branches on a GPU value, which was read as false",
    }
    for kind, text in said.items():
        lines = sorted({row.line or "a library" for row in rows if row.kind == kind})
        for line in lines[:_MOST_LINES]:
            yield f"{line} {text}; set another value with --value {line}=NUMBER"
        if len(lines) > _MOST_LINES:
            yield f"{len(lines) - _MOST_LINES} more lines do the same"


def _managed(cards: Sequence[CardNote]) -> Iterator[str]:
    """Describe the assumptions about managed memory, such as that of paged optimizers."""
    most = max((card.managed_bytes for card in cards), default=0)
    if most:
        yield (
            f"the job uses {format_bytes(most)} of managed memory: only what one kernel works on is counted; "
            "the rest moves to the host when the GPU is full, which takes as much host memory, and time"
        )


def _cudnn_planned(planner: Mapping[str, str]) -> Iterator[str]:
    """Describe the source of convolution workspaces that the job's own cuDNN did not choose."""
    bundled, version = planner.get("bundled_version"), planner.get("version")
    if planner.get("planned_by") == "named":
        yield f"cuDNN {version} planned the convolutions in place of the job's {bundled}"
    elif planner.get("planned_by") == "none":
        yield (
            f"convolutions are counted without workspaces: cuDNN {bundled} cannot plan them without a GPU; "
            "name another libcudnn.so.9 with --cudnn"
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


def assumptions(context: Recorded, device: Device | None) -> Iterator[str]:
    """Return the assumptions in words, for the user."""
    notes, origin = context.notes, context.origin
    if notes.phantom is not None:
        yield "the script ran on a phantom GPU, which computes nothing; PyTorch itself counted the memory"
        yield from _requests_that_do_not_fit(context, notes.phantom)
        yield from _values_read(notes.phantom.values)
        yield from _cudnn_planned(notes.phantom.cudnn)
        yield from _managed(notes.phantom.cards)
        yield from notes_on_gpu_speed(context, notes.phantom)
    elif not origin.on_cpu:
        yield "the trace was recorded on a GPU: its allocations are replayed as they were"
        if not trains(context.attribution):
            yield "the trace has no optimizer steps: it is taken as the whole job, such as inference"
    elif origin is Origin.FOREIGN_CPU:
        yield "the trace was not made by xmem-fast capture: what a block holds is inferred from its lifetime"
    if notes.mode == Mode.FAKE:
        yield "operators made their results on the CPU and computed nothing"
        yield from _values_read(notes.values)
    if origin is Origin.CAPTURED_CPU and not context.asked_for_gpu:
        yield "the script never asks for a GPU: all its tensors were taken as GPU memory"
    if origin in (Origin.FOREIGN_CPU, Origin.FOREIGN_GPU):
        yield from _one_of_many(context)
        yield from _begins_late(context)
    yield from notes.assumptions
    if origin.on_cpu:
        yield from notes_on_recurrent_layers(context.operators)
    if device is not None and device.context_basis == "assumed":
        name = device.name if device.name.startswith("a GPU") else f"the {device.name}"
        yield f"the CUDA context of {name} is an assumption, not a measurement"


def rules_of_release(settings: JobSettings, requests: Requests, ran: WithoutLimit) -> Iterator[str]:
    """Describe how much it matters that nothing names the job's PyTorch: its allocator's rules changed."""
    if settings.names_torch or ran.unreplayed.allocator.seen_bytes:
        return
    taken = ran.replay.peak_reserved.bytes
    has_pools = requests.uses_private_pools

    def noticed(options: AllocatorOptions) -> AllocatorOptions:
        """Return settings that are equal where this run cannot tell them apart."""
        return options if has_pools else options.as_without_private_pools()

    tried = [noticed(settings.options)]
    options_of: dict[str, AllocatorOptions] = {}
    for version in RULE_RELEASES:
        try:
            options = noticed(replace(settings, torch_version=version).options)
        except ConfigError:  # a setting that this release does not have
            continue
        if options not in tried:
            tried.append(options)
            options_of[version] = options
    peaks = peaks_reserved(requests, options_of.values())
    others = {version: peak for version, peak in zip(options_of, peaks, strict=True) if peak != taken}
    if others:
        shown = ", ".join(f"{format_bytes(peak)} with those of {version}" for version, peak in others.items())
        yield (
            f"nothing names the job's PyTorch: the allocator's rules of {settings.torch_version} were taken, "
            f"which reserve {format_bytes(taken)}; it would be {shown}; name the release with --torch"
        )


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
    return has_totals and recorded.attribution.optimizer_steps >= _WHOLE_ITERATION


def _one_of_many(recorded: Recorded) -> Iterator[str]:
    """Describe whose memory a trace that others recorded shows, where a job has several processes."""
    rank, processes = recorded.trace.rank, len(recorded.processes)
    others = _other_gpus(recorded)
    if others:
        shown = ", ".join(f"{format_bytes(peak)} on GPU {device}" for device, peak in others.items())
        yield (
            f"the trace holds memory events of {len(others) + 1} GPUs: the answer is about GPU "
            f"{recorded.traced_device[1]}; in use on the others, at most: {shown}"
        )
    if processes > 1:
        yield (
            f"the trace holds memory events of {processes} processes on the same device: they are counted "
            "together as if one process had made them, so that the reserved memory is not that of any; "
            "give the trace of one process"
        )
    elif rank is not None and rank.world_size > 1:
        yield (
            f"the trace is of rank {rank.number} of {rank.world_size}: other ranks can need more, and what "
            "other processes held on the same GPU is not in it"
        )
    elif rank is None and recorded.trace.names.matching(lambda name: name.startswith(_COLLECTIVES)).any():
        yield (
            "the run calls collectives, but the trace does not say which process of how many it is: others "
            "can need more, and what they held on the same GPU is not in it"
        )


def _requests_that_do_not_fit(recorded: Recorded, phantom: PhantomNotes) -> Iterator[str]:
    """Say so if the trace has the allocator's own record, and its blocks are others."""
    has_record = any(requests.device == recorded.traced_device[1] for requests in phantom.requests)
    if has_record and recorded.history is None:
        yield (
            "the allocator's own record does not fit the memory events of the trace and was not used: blocks "
            "stand for what was asked for, and other streams, pools and emptied caches are not known"
        )


def _other_gpus(recorded: Recorded) -> dict[int, int]:
    """Return the most bytes in use on each GPU that the trace shows beside the one in question, also from
    before the trace where PyTorch's allocator counted them.
    """
    device_type, traced = recorded.traced_device
    blocks, memory = recorded.blocks, recorded.trace.memory
    peaks: dict[int, int] = {}
    if recorded.origin is not Origin.FOREIGN_GPU:
        return peaks
    unseen = blocks.device_index[(blocks.device_type == device_type) & (blocks.device_index != traced)]
    while len(unseen):  # not `np.unique`, which imports masked arrays
        device = int(unseen.min())
        unseen = unseen[unseen != device]
        rows = (blocks.device_type == device_type) & (blocks.device_index == device)
        freed = rows & (blocks.free_ns != NEVER)
        times = np.concatenate([blocks.free_ns[freed], blocks.alloc_ns[rows]])
        changes = np.concatenate([-blocks.size_bytes[freed], blocks.size_bytes[rows]])
        in_use = np.cumsum(changes[np.argsort(times, kind="stable")])
        counted = memory.total_allocated[
            (memory.device_type == device_type) & (memory.device_index == device)
        ]
        peaks[device] = int(max(in_use.max(initial=0), counted.max(initial=0)))
    return peaks


def _begins_late(recorded: Recorded) -> Iterator[str]:
    """Describe what a trace that others recorded leaves open."""
    on_cpu, attribution = recorded.origin.on_cpu, recorded.attribution
    has_shapes = bool((recorded.trace.events.inputs >= 0).any())
    if on_cpu and trains(attribution) and not has_shapes:
        yield (
            "the trace has no shapes: parameters from before it began have the sizes of their gradients, and "
            "workspaces of convolutions are not counted; record it with record_shapes=True"
        )
    elif on_cpu and not trains(attribution):
        yield "the trace has no optimizer steps: it is taken as inference" + (
            f", with {given_weights(recorded).words}"
            if has_shapes
            else ", and its weights are not counted; record it with record_shapes=True"
        )
    elif not on_cpu and recorded.allocator is None:
        yield (
            "the trace has no totals of PyTorch's allocator: memory from before it began is counted only "
            "where shapes show it, so the job may need more; record it with PyTorch 1.11 or later"
        )
    elif not on_cpu:
        yield (
            "the figures are those of the recorded part of the run; what it needed before or after that is "
            "not in the trace"
        )
    if attribution.optimizer_steps < _WHOLE_ITERATION:
        yield (
            "there is no interval: two steps of an optimizer would enclose a whole iteration, and the trace "
            f"has {attribution.optimizer_steps}"
        )


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


def batches_differ(spread_bytes: int) -> Iterator[str]:
    """Explain in words what a spread of the iterations means."""
    if spread_bytes:
        yield (
            f"iterations differ by {format_bytes(spread_bytes)}, so batches differ in size; a larger batch "
            "than those seen needs more, and the interval leaves room for the same amount again"
        )


def _peaks_of_iterations(workload: Workload, requests: Requests, replay: Replay) -> NDArray[np.int64]:
    allocations = np.flatnonzero(requests.kind == RequestKind.ALLOC)
    iteration = workload.iteration[requests.block[allocations]]
    inside = iteration >= 0
    if not inside.any():
        return np.zeros(0, np.int64)
    peaks = np.zeros(int(iteration.max()) + 1, np.int64)
    np.maximum.at(peaks, iteration[inside], replay.timeline.allocated_bytes[allocations[inside]])
    return peaks
