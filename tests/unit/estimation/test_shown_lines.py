"""The package's line in place of a user's line below which everything runs."""

from __future__ import annotations

import xmem
from xmem.breakdown.execution import execution_of
from xmem.breakdown.lines import bytes_by_line
from xmem.testing.trace_builder import TraceBuilder

MIB = 1 << 20
TRAIN = "train.py:9 < "


def by_a_trainer() -> TraceBuilder:
    """A step made below one line of the user's; the line before it, which moves the model, is of its own."""
    trace = TraceBuilder().with_metadata(device_requests=1, iterations=1, versions={"torch": "2.13.0"})
    trace.span("xmem_line", "train.py:8 < transformers/trainer.py:50", 0, 5).alloc(0x1, 4 * MIB, 1)
    trace.iteration(0, 10, 100)
    trace.module("Net", 11, 30).span("xmem_line", f"{TRAIN}transformers/models/bert.py:3", 12, 28)
    trace.operator("aten::linear", 13, 20, sequence_number=1).alloc(0x2, 8 * MIB, 15)
    trace.span("xmem_line", "train.py:30", 29, 30)  # a callback of the user's own
    trace.annotation("Optimizer.step#SGD.step", 60, 80).span(
        "xmem_line", f"{TRAIN}bitsandbytes/adam.py:7", 62, 75
    )
    trace.alloc(0x3, 2 * MIB, 65).free(0x2, 90)
    return trace


def test_lines_of_packages_behind_a_line_that_trains() -> None:
    found = xmem.analyze(by_a_trainer().bytes(), gpu="rtx-3060")
    lines = found.estimate.breakdown.source_line
    assert lines == {
        "transformers/models/bert.py:3": 8 * MIB,
        "train.py:8": 4 * MIB,
        "bitsandbytes/adam.py:7": 2 * MIB,
    }
    named = {f"{line.file}:{line.line}" for line in bytes_by_line(found, execution_of(found))}
    assert named == set(lines)


def test_the_own_line_stays_where_it_does_one_thing() -> None:
    trace = TraceBuilder().with_metadata(device_requests=1, iterations=1, versions={"torch": "2.13.0"})
    trace.iteration(0, 10, 100)
    trace.module("Net", 11, 30).span("xmem_line", f"{TRAIN}transformers/models/bert.py:3", 12, 28)
    trace.operator("aten::linear", 13, 20).alloc(0x2, 8 * MIB, 15)
    trace.annotation("Optimizer.step#SGD.step", 60, 80).span(
        "xmem_line", "train.py:10 < apex/adam.py:7", 62, 75
    )
    trace.alloc(0x3, 2 * MIB, 65)
    lines = xmem.analyze(trace.bytes(), gpu="rtx-3060").estimate.breakdown.source_line
    assert lines == {"train.py:9": 8 * MIB, "train.py:10": 2 * MIB}
