"""What an estimate assumes, in words for the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from xmem.devices.gpus import Device
from xmem.errors import ConfigError
from xmem.estimation.evidence import WHOLE_ITERATION
from xmem.estimation.gpu_speed import notes_on_gpu_speed
from xmem.estimation.need import WithoutLimit
from xmem.estimation.open_recurrent import notes_on_recurrent_layers
from xmem.orchestration.lifetimes.given_weights import given_weights
from xmem.run.job_settings import JobSettings
from xmem.run.recorded import Origin, Recorded
from xmem.simulation.alloc_conf import RULE_RELEASES, AllocatorOptions
from xmem.simulation.replay import Requests
from xmem.simulation.several_settings import peaks_reserved
from xmem.text.units import format_bytes
from xmem.trace.attribution import trains
from xmem.trace.blocks import NEVER
from xmem.trace.notes import CardNote, Mode, PhantomNotes, ValueRead

_MOST_LINES = 5
_COLLECTIVES = ("nccl:", "gloo:", "c10d::", "record_param_comms")


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


def batches_differ(spread_bytes: int) -> Iterator[str]:
    """Explain in words what a spread of the iterations means."""
    if spread_bytes:
        yield (
            f"iterations differ by {format_bytes(spread_bytes)}, so batches differ in size; a larger batch "
            "than those seen needs more, and the interval leaves room for the same amount again"
        )


def _requests_that_do_not_fit(recorded: Recorded, phantom: PhantomNotes) -> Iterator[str]:
    """Say so if the trace has the allocator's own record, and its blocks are others."""
    has_record = any(requests.device == recorded.traced_device[1] for requests in phantom.requests)
    if has_record and recorded.history is None:
        yield (
            "the allocator's own record does not fit the memory events of the trace and was not used: blocks "
            "stand for what was asked for, and other streams, pools and emptied caches are not known"
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
    if attribution.optimizer_steps < WHOLE_ITERATION:
        yield (
            "there is no interval: two steps of an optimizer would enclose a whole iteration, and the trace "
            f"has {attribution.optimizer_steps}"
        )
