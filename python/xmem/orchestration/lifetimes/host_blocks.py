"""Memory that a CPU profile shows but a GPU never holds, and device memory that the profile started too late
to show.
"""

from __future__ import annotations

import numpy as np

from xmem.run.recorded import Recorded
from xmem.run.workload import Workload
from xmem.trace.attribution import Category, Phase
from xmem.trace.blocks import BORN_BEFORE, NEVER


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
    known; it is replayed as one.
    """

    name = "add_memory_before_trace"
    description = (
        "memory that was allocated before the trace began and never freed in it is added as one block"
    )

    def __call__(self, workload: Workload, context: Recorded) -> Workload:
        """Add the baseline as one block, and give it and all other older blocks their category."""
        older = (workload.flags & BORN_BEFORE) != 0
        if older.any():
            unknown = older & (workload.category == Category.UNKNOWN)
            category = np.where(unknown, Category.BEFORE_TRACE, workload.category).astype(np.uint8)
            workload = workload.with_columns(category=category)
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
        return workload.with_added(
            size_bytes=baseline,
            alloc_ns=int(memory.time_ns[0]),
            free_ns=NEVER,
            category=Category.BEFORE_TRACE,
            phase=Phase.OTHER,
            iteration=-1,
        )
