"""The evidence of an estimate: where the peak is, who holds what, what was assumed, what was wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem.alloc_conf import AllocatorOptions
from xmem.attribution import Attribution, Category, Phase
from xmem.blocks import CPU, BlockTable
from xmem.devices import Device
from xmem.estimate_result import (
    Bounds,
    Breakdown,
    Diagnostic,
    Measured,
    OutOfMemory,
    Peak,
    RankPeak,
    SimulationSummary,
    TraceSummary,
)
from xmem.job_settings import allocator_options, phantom_notes
from xmem.orchestration.operators import OperatorIndex
from xmem.orchestration.policy import Recorded
from xmem.orchestration.recurrent import recurrent_calls
from xmem.orchestration.workload import Workload
from xmem.simulation import DeviceAction, Replay, RequestKind, Requests
from xmem.source_lines import user_line
from xmem.trace import Trace

_GRANULE_BYTES = 512  # the caching allocator's rounding, kMinBlockSize
_CATEGORIES = [category.label for category in Category]
_SLACK = "allocator_slack"
_MOST_LINES = 5


@dataclass(frozen=True)
class Witness:
    """What the workload says about instants of a replay."""

    trace: Trace
    attribution: Attribution
    workload: Workload
    requests: Requests

    def peak(self, replay: Replay) -> Peak:
        """The instant of the peak of allocated bytes, the first of equal ones."""
        request = replay.peak_allocated.request
        block = self.peak_block(replay)
        return Peak(
            iteration=int(self.workload.iteration[block]),
            phase=Phase(int(self.workload.phase[block])).label,
            operator=self._operator(block),
            module=self._module(block),
            source_line=self._lines[self.workload.source_line[block]] or None,
            time_ns=int(self.requests.time_ns[request]),
            request_index=request,
            requested_bytes=int(replay.timeline.requested_bytes[request]),
        )

    def peak_block(self, replay: Replay) -> int:
        """Row of the workload whose allocation raised the peak."""
        return int(self.requests.block[replay.peak_allocated.request])

    def breakdown(self, replay: Replay) -> Breakdown:
        """Who holds the bytes allocated at the peak, by category, module, operator and source line.

        Bytes are those of blocks: requests rounded to 512 bytes, and the slack of blocks that were not split.
        """
        rows = self._alive_at(replay.peak_allocated.request)
        held = replay.placement.size_bytes[rows]
        rounded = self._taken_bytes(replay)[rows]
        categories = _sums(self.workload.category[rows], rounded, _CATEGORIES)
        slack = int((held - rounded).sum())
        module, paths = self._modules
        return Breakdown(
            category=categories | ({_SLACK: slack} if slack else {}),
            category_peaks=self._category_peaks(self._taken_bytes(replay)),
            module=_sums(module[rows], held, paths, "(outside of modules)"),
            operator=_sums(self._operator_name[rows], held, self._operator_names, "(outside of operators)"),
            source_line=_sums(self.workload.source_line[rows], held, self._lines, "(no line known)"),
        )

    def simulation(self, replay: Replay, failed: Replay | None, bounds: Bounds) -> SimulationSummary:
        """What the allocator did, in the words of ``torch.cuda.memory_stats``."""
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

    def _out_of_memory(self, failed: Replay) -> OutOfMemory:
        assert failed.oom is not None
        block = int(self.requests.block[failed.oom.request])
        return OutOfMemory(
            request_index=failed.oom.request,
            requested_bytes=failed.oom.requested_bytes,
            device_free_bytes=failed.oom.device_free_bytes,
            operator=self._operator(block),
            module=self._module(block),
            source_line=self._lines[self.workload.source_line[block]] or None,
            iteration=int(self.workload.iteration[block]),
            phase=Phase(int(self.workload.phase[block])).label,
        )

    def _category_peaks(self, taken_bytes: NDArray[np.int64]) -> dict[str, int]:
        """The most that each category held at any one time, in rounded bytes."""
        block = self.requests.block
        sign = np.where(self.requests.kind == RequestKind.ALLOC, 1, -1)
        change = sign * taken_bytes[block]
        category = self.workload.category[block]
        peaks = {
            label: int(np.cumsum(np.where(category == value, change, 0)).max())
            for value, label in enumerate(_CATEGORIES)
        }
        return {label: peak for label, peak in peaks.items() if peak > 0}

    @cached_property
    def _rounded_bytes(self) -> NDArray[np.int64]:
        return -(-self.workload.size_bytes // _GRANULE_BYTES) * _GRANULE_BYTES

    def _taken_bytes(self, replay: Replay) -> NDArray[np.int64]:
        """Rounded bytes of each block, of the alternative that it took where it has any."""
        if len(self.requests.alternatives.list) == 0:
            return self._rounded_bytes
        return np.minimum(self._rounded_bytes, np.maximum(replay.placement.size_bytes, 0))

    def _alive_at(self, request: int) -> NDArray[np.intp]:
        """Rows of the workload that are allocated after the request."""
        kind, block = self.requests.kind[: request + 1], self.requests.block[: request + 1]
        alive = np.zeros(len(self.workload), np.bool_)
        alive[block[kind == RequestKind.ALLOC]] = True
        alive[block[kind == RequestKind.FREE]] = False
        return np.flatnonzero(alive)

    def _module(self, block: int) -> str | None:
        module, paths = self._modules
        return paths[module[block]] or None

    def _operator(self, block: int) -> str | None:
        return self._operator_names[self._operator_name[block]] or None

    @cached_property
    def _operator_name(self) -> NDArray[np.intp]:
        """Index into ``_operator_names`` of the outermost operator of each row, -1 = none."""
        root = self.workload.root_operator
        names = np.where(root >= 0, self.trace.events.name[root], -1)
        return np.searchsorted(self._name_ids, names) - 1

    @cached_property
    def _name_ids(self) -> NDArray[np.int32]:
        root = self.workload.root_operator
        used = np.zeros(1 + len(self.trace.names), np.bool_)  # np.unique would import masked arrays
        used[0] = True
        used[1 + self.trace.events.name[root[root >= 0]]] = True
        return (np.flatnonzero(used) - 1).astype(np.int32)

    @cached_property
    def _operator_names(self) -> list[str]:
        return [*(self.trace.names[int(name)] for name in self._name_ids[1:]), ""]

    @cached_property
    def _lines(self) -> list[str]:
        return [*map(user_line, self.attribution.lines), ""]

    @cached_property
    def _modules(self) -> tuple[NDArray[np.int32], list[str]]:
        """The module of each row, and the paths: whose tensor it is, else which one ran at its birth."""
        module = self.workload.module.copy()
        ids = {path: index for index, path in enumerate(self.attribution.modules)}
        tensors = (self.trace.metadata or {}).get("tensors", {"role": [], "name": []})
        for row in np.flatnonzero(self.workload.tensor >= 0):
            tensor = self.workload.tensor[row]
            owner = _module_of_tensor(tensors["role"][tensor], tensors["name"][tensor])
            if owner:
                module[row] = ids.setdefault(owner, len(ids))
        return module, [*ids, ""]


def _values_read(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Where the script acted on values that the phantom GPU does not have."""
    said = {
        "sizes": "selects by values of the GPU: a natural share was taken as selected",
        "decisions": "decides by a value of the GPU, which read as false",
    }
    for kind, text in said.items():
        lines = sorted({row["line"] or "a library" for row in rows if row["kind"] == kind})
        for line in lines[:_MOST_LINES]:
            yield f"{line} {text}; say otherwise with --value {line}=NUMBER"
        if len(lines) > _MOST_LINES:
            yield f"{len(lines) - _MOST_LINES} more lines do the like"


def _cudnn_planned(planner: Mapping[str, str]) -> Iterator[str]:
    """Where it was not the job's own cuDNN that chose the workspaces of convolutions."""
    bundled, version = planner.get("bundled_version"), planner.get("version")
    if planner.get("planned_by") == "named":
        yield f"cuDNN {version} planned the convolutions in place of the job's {bundled}"
    elif planner.get("planned_by") == "none":
        yield (
            f"convolutions are counted without workspaces: cuDNN {bundled} cannot plan them without a GPU; "
            "name another libcudnn.so.9 with --cudnn"
        )


def has_convolutions(trace: Trace) -> bool:
    """Whether a job convolves: its workspaces are a doubt that other jobs do not have."""
    return bool(OperatorIndex(trace).rows_named(_is_convolution).any())


def _is_convolution(operator: str) -> bool:
    return operator.startswith(("aten::conv", "aten::_conv", "aten::mkldnn_conv"))


def _recurrent_layers(context: Recorded) -> Iterator[str]:
    """What is not certain of recurrent layers on a run of the CPU."""
    known = [call is not None for call in recurrent_calls(context.operators).values()]
    if any(known):
        yield "the workspaces of recurrent layers follow a formula fitted to cuDNN's answers"
    if not all(known):
        yield (
            "what cuDNN keeps of recurrent layers without recorded shapes, or in bfloat16, is not counted; "
            "what the CPU keeps stands for it"
        )


def _module_of_tensor(role: str, name: str) -> str:
    """``GPT.fc.weight`` belongs to ``GPT.fc``; so do its gradient and its ``GPT.fc.weight.exp_avg``."""
    if role == "input":
        return ""
    return name.rsplit(".", 2 if role == "optimizer_state" else 1)[0]


def _sums(
    keys: NDArray[np.integer], bytes_: NDArray[np.int64], names: list[str], missing: str = ""
) -> dict[str, int]:
    """Bytes by name, most first; keys of -1 count under the name for what is missing."""
    totals: dict[str, int] = {}
    found, where = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(found), np.int64)
    np.add.at(sums, where, bytes_)
    for key, total in zip(found, sums, strict=True):
        name = (names[key] if key >= 0 else "") or missing
        totals[name] = totals.get(name, 0) + int(total)
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def diagnostics(trace: Trace, blocks: BlockTable) -> tuple[Diagnostic, ...]:
    """What was wrong with the input."""
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
    """The trace that the estimate rests on."""
    metadata = trace.metadata
    return TraceSummary(
        path=trace.path or "",
        bytes=trace.bytes,
        events=trace.counts,
        iterations=int(metadata["iterations"]) if metadata else attribution.optimizer_steps,
        source="capture" if metadata else "foreign",
        command=tuple(metadata.get("argv", ())) if metadata else (),
    )


def assumptions(context: Recorded, device_type: int, device: Device | None) -> Iterator[str]:
    """What had to be assumed, in words for the person who asks."""
    metadata = context.metadata
    if metadata is not None and "phantom" in metadata:
        yield "the script ran on a phantom GPU, which computes nothing; memory is PyTorch's own account"
        yield from _values_read(metadata["phantom"]["values"])
        yield from _cudnn_planned(metadata["phantom"].get("cudnn", {}))
    elif device_type != CPU:
        yield "the trace was recorded on a GPU: its allocations are replayed as they were"
    elif metadata is None:
        yield "the trace was not made by xmem-fast capture: what blocks hold is inferred from when they live"
        yield (
            "parameters made before the recording began are not in the trace and not counted; "
            "capture the script with xmem-fast to have them"
        )
    elif not metadata.get("device_requests"):
        yield "the script never asks for a GPU: all its tensors were taken as GPU memory"
    if metadata is not None:
        yield from metadata.get("assumptions", ())
    if device_type == CPU:
        yield from _recurrent_layers(context)
    if device is not None and device.context_basis == "assumed":
        yield f"the CUDA context of the {device.name} is an assumption, not a measurement"


def measured(trace: Trace, replayed: Replay, options: AllocatorOptions) -> Measured | None:
    """The allocator's own figures of a run on the phantom GPU, and whether the replay reached the same."""
    ranks = tuple(
        RankPeak(
            rank=rank["rank"],
            device=row["device"],
            peak_reserved_bytes=row["peak_reserved_bytes"],
            peak_allocated_bytes=row["peak_allocated_bytes"],
        )
        for rank in phantom_notes(trace).get("ranks", ())
        for row in rank["devices"]
    )
    if not ranks:
        return None
    own = max(
        (peak for peak in ranks if peak.rank == ranks[0].rank), key=lambda peak: peak.peak_allocated_bytes
    )
    same_rules = options == allocator_options(trace, None, None)
    return Measured(
        peak_reserved_bytes=own.peak_reserved_bytes,
        peak_allocated_bytes=own.peak_allocated_bytes,
        replay_agrees=(
            (replayed.peak_reserved.bytes, replayed.peak_allocated.bytes)
            == (own.peak_reserved_bytes, own.peak_allocated_bytes)
            if same_rules
            else None
        ),
        ranks=ranks,
    )
