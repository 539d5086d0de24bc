"""Two iterations of a model of three tanh layers and a sum, of which one module makes the inner part."""

from __future__ import annotations

from xmem.testing.trace_builder import TraceBuilder

MIB = 1 << 20
WEIGHT, FIRST, SECOND, RESULT, HEAD, GRADIENT = (size * MIB for size in (1, 4, 8, 16, 2, 3))


def nested(*, iterations: int = 2, marked: bool = True) -> TraceBuilder:
    """``Net`` calls ``Net.block``, which makes FIRST and SECOND, saved by their own nodes, and RESULT, which
    nothing saves; then HEAD is made from it.

    RESULT is kept by a name until the next iteration has made its own. Calls of modules are marked as by a
    capture, or are the profiler's frames.
    """
    trace = TraceBuilder().with_metadata(
        device_requests=1,
        iterations=iterations,
        argv=["train.py"],
        versions={"torch": "2.13.0"},
        optimizers=[{"name": "SGD", "parameters": 1, "foreach": True, "fused": False}],
    )
    trace.alloc(0x1, WEIGHT, 1).tensor("parameter", "Net.weight", 0x1, WEIGHT, 2)
    for step in range(iterations):
        t, number = 10 + 300 * step, 10 * step
        result, gradient = 0x20 + step, 0x30 + step
        trace.iteration(step, t, t + 300)
        if marked:
            trace.module("Net", t + 10, t + 60).module("Net.block", t + 12, t + 40)
        else:
            trace.module_frame("Net_0", t + 10, t + 60).module_frame("Block_3", t + 12, t + 40)
        trace.line("/job/train.py", 7, t + 13, t + 28).line("/job/train.py", 8, t + 29, t + 36)
        trace.operator("aten::tanh", t + 14, t + 18, sequence_number=number + 1).alloc(0x10, FIRST, t + 15)
        trace.operator("aten::tanh", t + 20, t + 24, sequence_number=number + 2).alloc(0x11, SECOND, t + 21)
        trace.operator("aten::add", t + 30, t + 34, sequence_number=number + 3).alloc(result, RESULT, t + 31)
        if step:
            trace.free(result - 1, t + 41)
        trace.line("/job/train.py", 9, t + 43, t + 52)
        trace.operator("aten::tanh", t + 44, t + 50, sequence_number=number + 4).alloc(0x12, HEAD, t + 45)
        trace.backward("TanhBackward0", t + 100, t + 110, sequence_number=number + 4).free(0x12, t + 105)
        trace.backward("AddBackward0", t + 111, t + 113, sequence_number=number + 3)
        trace.backward("TanhBackward0", t + 120, t + 130, sequence_number=number + 2)
        trace.alloc(gradient, GRADIENT, t + 122).free(0x11, t + 128)
        trace.backward("TanhBackward0", t + 131, t + 140, sequence_number=number + 1).free(0x10, t + 138)
        trace.alloc(gradient + 0x10, WEIGHT, t + 135).free(gradient, t + 139)
        trace.operator(
            "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", t + 141, t + 143
        )
        trace.tensor("gradient", "Net.weight", gradient + 0x10, WEIGHT, t + 145, group=0)
        trace.line("/job/train.py", 20, t + 149, t + 161).annotation(
            "Optimizer.step#SGD.step", t + 150, t + 160
        )
        trace.annotation("Optimizer.zero_grad#SGD.zero_grad", t + 170, t + 180).free(gradient + 0x10, t + 175)
    return trace
