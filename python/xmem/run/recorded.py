"""What a trace says about its run: all that policies may look at."""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum
from functools import cached_property

import numpy as np

from xmem.records import dataclass
from xmem.run.allocator_history import AllocatorHistory, allocator_history
from xmem.run.inputs import InputsByRow
from xmem.run.operators import OperatorIndex
from xmem.run.target import Target
from xmem.trace.attribution import Attribution
from xmem.trace.blocks import CPU, BlockTable, traced_device
from xmem.trace.notes import AllocatorNotes, CaptureNotes, DevicePeaks, RankNote
from xmem.trace.trace import Trace


class Origin(Enum):
    """Where a trace came from."""

    PHANTOM = "phantom"
    """A capture on a phantom GPU."""

    CAPTURED_CPU = "captured_cpu"
    """A capture on the CPU, which stood for a GPU."""

    RECORDED_GPU = "recorded_gpu"
    """A recording of ours on a real GPU."""

    FOREIGN_CPU = "foreign_cpu"
    """A trace that torch's profiler made of a run on the CPU."""

    FOREIGN_GPU = "foreign_gpu"
    """A trace that torch's profiler made of a run on a GPU."""

    @property
    def on_cpu(self) -> bool:
        """Whether the blocks are those of a CPU, and have to be corrected for a GPU."""
        return self in (Origin.CAPTURED_CPU, Origin.FOREIGN_CPU)


@dataclass(frozen=True, eq=False)
class Recorded:
    """What the trace says about the run: all that a policy for any target may look at. Equal only to itself,
    so that what follows from it can be kept beside it."""

    trace: Trace
    blocks: BlockTable
    attribution: Attribution

    @cached_property
    def operators(self) -> OperatorIndex:
        """Names and nesting of the trace's operators."""
        return OperatorIndex(self.trace)

    @cached_property
    def traced_device(self) -> tuple[int, int]:
        """Type and index of the device that the run is about."""
        noted = self.trace.notes.allocator
        busiest = None if noted is None else noted.busiest
        return traced_device(self.blocks, self._fullest_gpu() if busiest is None else busiest.device)

    def _fullest_gpu(self) -> int | None:
        """Return the GPU on which most was reserved by the totals in memory events, None without totals."""
        memory = self.trace.memory
        reserved = np.where(memory.device_type == CPU, 0, memory.total_reserved)
        return int(memory.device_index[np.argmax(reserved)]) if reserved.max(initial=0) > 0 else None

    @cached_property
    def processes(self) -> frozenset[int]:
        """The processes whose memory on the traced device the trace shows."""
        memory, (device_type, device) = self.trace.memory, self.traced_device
        rows = (memory.device_type == device_type) & (memory.device_index == device)
        threads = np.flatnonzero(np.bincount(memory.thread[rows]))  # np.unique would import masked arrays
        return frozenset(self.trace.process_of_thread[threads].tolist())

    @cached_property
    def allocator(self) -> AllocatorNotes | None:
        """What PyTorch's own allocator said of the run: in the capture's notes, else in the totals that the
        memory events of a GPU hold; None where neither is there.
        """
        if self.notes.allocator is not None:
            return self.notes.allocator
        device_type, device = self.traced_device
        if device_type == CPU:
            return None
        memory = self.trace.memory
        rows = (memory.device_type == device_type) & (memory.device_index == device)
        reserved_bytes = int(memory.total_reserved[rows].max(initial=0))
        if reserved_bytes <= 0:
            return None
        allocated_bytes = int(memory.total_allocated[rows].max(initial=0))
        return AllocatorNotes(ranks=(RankNote(0, (DevicePeaks(device, reserved_bytes, allocated_bytes),)),))

    @cached_property
    def origin(self) -> Origin:
        """Where the trace came from."""
        on_cpu = self.traced_device[0] == CPU
        if not self.trace.is_captured:
            return Origin.FOREIGN_CPU if on_cpu else Origin.FOREIGN_GPU
        if self.notes.phantom is not None:
            return Origin.PHANTOM
        return Origin.CAPTURED_CPU if on_cpu else Origin.RECORDED_GPU

    @cached_property
    def history(self) -> AllocatorHistory | None:
        """The requests to the allocator of the traced device, None if the trace does not say."""
        phantom = self.notes.phantom
        return (
            None if phantom is None else allocator_history(phantom.requests, self.blocks, *self.traced_device)
        )

    @property
    def notes(self) -> CaptureNotes:
        """What our capture noted; empty for a foreign trace."""
        return self.trace.notes

    @property
    def is_captured(self) -> bool:
        """Whether our capture made the trace."""
        return self.trace.is_captured

    @property
    def asked_for_gpu(self) -> bool:
        """Whether this is a capture of a script that asked for a GPU, so that host and device memory are
        told apart.
        """
        return self.notes.device_requests > 0

    def on(self, target: Target) -> Context:
        """Return the same run, for policies that move it to a target."""
        context = Context(self.trace, self.blocks, self.attribution, target=target)
        context.__dict__["operators"] = self.operators  # indexed once for all targets
        context.__dict__["history"] = self.history
        return context

    def with_inputs(self, inputs: InputsByRow | None) -> Recorded:
        """Return the same run with other inputs for some of its operators; None: no change."""
        recorded = replace(self)
        recorded.__dict__["operators"] = (
            self.operators if inputs is None else self.operators.with_inputs(inputs)
        )
        recorded.__dict__["history"] = self.history
        return recorded


@dataclass(frozen=True)
class Context(Recorded):
    """The run, and the target that it is moved to."""

    target: Target = field(kw_only=True)
