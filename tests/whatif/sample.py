"""Two iterations of one Linear layer with SGD, small enough to compute by hand."""

from __future__ import annotations

from xmem.testing.trace_builder import TraceBuilder

MIB = 1 << 20
KIB = 1 << 10
WEIGHT, BIAS = 4 * MIB, 4 * KIB
BATCH, OUTPUT = 2 * MIB, 3 * MIB


def linear(*, iterations: int = 2, names: bool = True, batch_size: int = 1) -> TraceBuilder:
    """Weight (1024 x 1024) and bias, cleared before each forward but the first; the batch until the next."""
    trace = TraceBuilder().with_metadata(
        device_requests=1,
        iterations=iterations,
        argv=["train.py"],
        versions={"torch": "2.13.0"},
        optimizers=[{"name": "SGD", "parameters": 2}],
    )
    trace.alloc(0x1, WEIGHT, 1).alloc(0x2, BIAS, 2)
    if names:
        trace.tensor("parameter", "Net.weight", 0x1, WEIGHT, 3, shape=(1024, 1024))
        trace.tensor("parameter", "Net.bias", 0x2, BIAS, 3)
    for step in range(iterations):
        t = 10 + 100 * step
        batch, weight, bias = (0x10 + 16 * step, 0x11 + 16 * step, 0x12 + 16 * step)
        trace.iteration(step, t, t + 100).alloc(batch, batch_size * BATCH, t + 1)
        if names:
            trace.tensor("input", "train.py:3", batch, batch_size * BATCH, t + 1)
        if step:
            trace.free(batch - 16, t + 2)
            trace.annotation("Optimizer.zero_grad#SGD.zero_grad", t + 3, t + 6)
            trace.free(weight - 16, t + 4).free(bias - 16, t + 5)
        trace.module("Net", t + 10, t + 20)
        trace.operator("aten::linear", t + 11, t + 19, sequence_number=step, input_types=["float", "float"])
        trace.alloc(0x3, batch_size * OUTPUT, t + 15)
        trace.backward("AddmmBackward0", t + 32, t + 50, sequence_number=step)
        trace.alloc(weight, WEIGHT, t + 40).alloc(bias, BIAS, t + 41).free(0x3, t + 45)
        trace.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", t + 51, t + 52)
        trace.operator("autograd::engine::evaluate_function: TBackward0", t + 53, t + 54)
        trace.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", t + 55, t + 56)
        if names:
            trace.tensor("gradient", "Net.weight", weight, WEIGHT, t + 60, shape=(1024, 1024), group=0)
            trace.tensor("gradient", "Net.bias", bias, BIAS, t + 60, group=0)
        trace.annotation("Optimizer.step#SGD.step", t + 61, t + 70)
    return trace
