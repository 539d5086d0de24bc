"""Memory that a CPU profile shows but a GPU never holds, and device memory that the profile started too late
to show.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xmem.orchestration.lifetimes.state_before_trace import AddStateBeforeTrace, StateBefore, state_before
from xmem.run.recorded import Recorded
from xmem.run.workload import Workload
from xmem.trace.attribution import Category, Phase
from xmem.trace.blocks import BORN_BEFORE, NEVER

BASELINE_CATEGORIES = (
    Category.PARAMETER,
    Category.OPTIMIZER_STATE,
    Category.GRADIENT,
    Category.BEFORE_TRACE,
)
"""What memory from before a GPU trace can be (``AddMemoryBeforeTrace``)."""

_COUNTED_TWICE = 0.01  # share of parameters that several operators may have been given


class DropHostMemory:
    """Host tensors stay in host memory: data sets, collated batches, optimizer step counters, copies made by
    `.cpu()`.

    In a capture of a script that asked for a GPU, spans mark what touched only host tensors, and everything
    allocated before the first such request is on the host (reference: cpu_vs_cuda_memory, sections 11 and
    14). In a foreign CPU trace the tensors that a DataLoader yields stand for their device copies; what it
    used on the way is dropped.
    """

    name = "drop_host_memory"
    description = "host-only tensors (data loading, step counters, copies to the host) take no GPU memory"

    def __call__(self, workload: Workload, context: Recorded) -> Workload:
        """Drop host blocks."""
        if context.asked_for_gpu:
            return workload.select(~workload.host & ((workload.flags & BORN_BEFORE) == 0))
        loading = (workload.phase == Phase.LOAD) & (workload.category == Category.TEMPORARY)
        return workload.select(~loading)


class AddTensorsBeforeTrace:
    """Parameters and buffers that were made before the recording began are on the GPU for the whole run.

    Only for scripts that never ask for a GPU: then nothing is copied to a device, and the recording begins
    when the model is first used. The capture lists the tensors with their sizes (`xmem` metadata, rows that
    no block of the trace holds).
    """

    name = "add_tensors_before_trace"
    description = "parameters and buffers made before the recording began are added from the capture's list"

    def __call__(self, workload: Workload, context: Recorded) -> Workload:
        """Add one block for each listed tensor that the trace holds no block for."""
        if not context.is_captured or context.asked_for_gpu or len(workload) == 0:
            return workload
        tensors = context.notes.tensors
        named = set(workload.tensor[workload.tensor >= 0].tolist())
        known_addresses = {tensors.address[row] for row in named}
        begin_ns = int(workload.alloc_ns[0])
        for row, (role, address) in enumerate(zip(tensors.role, tensors.address, strict=True)):
            if role not in ("parameter", "buffer") or address in known_addresses:
                continue
            known_addresses.add(address)
            workload = workload.with_added(
                size_bytes=int(tensors.size_bytes[row]),
                alloc_ns=begin_ns,
                free_ns=NEVER,
                category=Category.PARAMETER if role == "parameter" else Category.BUFFER,
                phase=Phase.OTHER,
                iteration=-1,
                tensor=row,
            )
        return workload


class AddMemoryBeforeTrace:
    """The first event of a GPU trace tells how much was already allocated: parameters and state of earlier
    iterations.

    `Total Allocated` of a CUDA `[memory]` event is the allocator's own counter; minus the first event and
    minus what is later seen being freed, it is memory that lives through the whole trace. Its blocks are not
    known; it is replayed as one, and one for each kind of state that shapes and the optimizer's name explain.
    """

    name = "add_memory_before_trace"
    description = (
        "memory that was allocated before the trace began and never freed in it is added, as a block for "
        "each kind of state that the trace explains and one for the rest"
    )
    inputs_of = AddStateBeforeTrace.inputs_of

    def __call__(self, workload: Workload, context: Recorded) -> Workload:
        """Add the baseline as one block, and give it and all other older blocks their category."""
        older = (workload.flags & BORN_BEFORE) != 0
        if older.any():
            unknown = older & (workload.category == Category.UNKNOWN)
            categories = np.where(unknown, Category.BEFORE_TRACE, workload.category).astype(np.uint8)
            workload = workload.with_columns(category=categories)
        memory = context.trace.memory
        device_type, device = context.traced_device
        traced = (memory.device_type == device_type) & (memory.device_index == device)
        first = np.flatnonzero(traced & (memory.total_allocated >= 0))[:1]
        if len(first) == 0:
            return workload
        born_before = workload.size_bytes[older].sum()
        baseline = int(memory.total_allocated[first[0]] - memory.bytes[first[0]] - born_before)
        if baseline <= 0:
            return workload
        for category, size_bytes in _parts(baseline, workload, context):
            workload = workload.with_added(
                size_bytes=size_bytes,
                alloc_ns=int(memory.time_ns[0]),
                free_ns=NEVER,
                category=category,
                phase=Phase.OTHER,
                iteration=-1,
            )
        return workload


def _parts(baseline_bytes: int, workload: Workload, context: Recorded) -> Iterator[tuple[Category, int]]:
    """Yield the kinds of state that memory from before a trace of somebody else's was, and the rest."""
    state = StateBefore() if context.is_captured else state_before(workload, context)
    parameter_bytes = state.parameter_bytes
    if parameter_bytes > (1 + _COUNTED_TWICE) * baseline_bytes:
        parameter_bytes -= state.tied_bytes
    elif parameter_bytes > baseline_bytes:
        parameter_bytes = baseline_bytes
    for category, size_bytes in (
        (Category.PARAMETER, parameter_bytes),
        (Category.OPTIMIZER_STATE, state.optimizer_bytes),
        (Category.GRADIENT, state.gradient_bytes),
    ):
        if 0 < size_bytes <= baseline_bytes:
            yield category, size_bytes
            baseline_bytes -= size_bytes
    if baseline_bytes:
        yield Category.BEFORE_TRACE, baseline_bytes
