"""A training run small enough to compute by hand."""

from __future__ import annotations

from xmem.testing.trace_builder import TraceBuilder

MIB = 1 << 20


def training(batch_bytes: int = 3 * MIB) -> TraceBuilder:
    """Two steps of one layer on the GPU's behalf: weight and bias, an activation, two gradients, momentum."""
    trace = TraceBuilder().with_metadata(
        device_requests=1, iterations=2, argv=["train.py"], versions={"torch": "2.13.0"}
    )
    trace.alloc(0x1, 4 * MIB, 1).alloc(0x2, 1000, 2)
    trace.tensor("parameter", "Net.fc.weight", 0x1, 4 * MIB, 3).tensor(
        "parameter", "Net.fc.bias", 0x2, 1000, 3
    )
    for step in range(2):
        t = 10 + 100 * step
        trace.iteration(step, t, t + 100).host(t, t + 5).alloc(0x99, batch_bytes, t + 1)
        trace.line("train.py", 7, t + 6, t + 30).module("Net.fc", t + 10, t + 20)
        trace.operator("aten::linear", t + 11, t + 19, sequence_number=step).alloc(0x3, batch_bytes, t + 15)
        trace.line("train.py", 8, t + 31, t + 60).backward(
            "AddmmBackward0", t + 32, t + 50, sequence_number=step
        )
        trace.alloc(0x4, 4 * MIB, t + 40).alloc(0x5, 1000, t + 41).free(0x3, t + 45)
        trace.annotation("Optimizer.step#SGD.step", t + 61, t + 70)
        if step == 0:
            trace.alloc(0x6, 4 * MIB, t + 62).tensor(
                "optimizer_state", "Net.fc.weight.momentum_buffer", 0x6, 4 * MIB, t + 63
            )
        trace.tensor("gradient", "Net.fc.weight", 0x4, 4 * MIB, t + 61).tensor(
            "gradient", "Net.fc.bias", 0x5, 1000, t + 61
        )
        trace.annotation("Optimizer.zero_grad#SGD.zero_grad", t + 80, t + 90).free(0x4, t + 81).free(
            0x5, t + 82
        )
        trace.free(0x99, t + 95)
    return trace
