"""Runs of one tiny script at several batch sizes, and models of them."""

from __future__ import annotations

from collections.abc import Callable

from training_sample import MIB, training
from xmem.estimation.observation import Observation, observe
from xmem.scaling import Sample, ScalingModel, fit
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.trace import read_trace


def run_at(batch: int, more: Callable[[TraceBuilder, int], object] | None = None) -> TraceBuilder:
    """The run at a batch size; `more` adds to it what is to go wrong."""
    trace = training(batch * MIB)
    if more is not None:
        more(trace, batch)
    return trace


def observed(trace: TraceBuilder) -> Observation:
    return observe(read_trace(trace.bytes()))


def model_of(*batches: int, more: Callable[[TraceBuilder, int], object] | None = None) -> ScalingModel:
    return fit([Sample({"batch": batch}, observed(run_at(batch, more))) for batch in batches])


def scratch(size_of: Callable[[int], int]) -> Callable[[TraceBuilder, int], object]:
    """A block inside the second step's linear layer, of any size; none where that is 0."""

    def add(trace: TraceBuilder, batch: int) -> None:
        if size := size_of(batch):
            trace.alloc(0x77, size, 126).free(0x77, 128)

    return add
