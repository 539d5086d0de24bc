"""Traces of GPUs from elsewhere: what PyTorch's own allocator says in them has the last word."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import xmem
from xmem.testing.trace_builder import TraceBuilder

MIB = 1 << 20
TRACES = Path(os.environ.get("XMEM_SHARED", Path(__file__).parents[3].parent / "shared")) / "data" / "traces"


def held_before(reserved_mib: int) -> TraceBuilder:
    """A GPU's trace that shows a block of 40 MiB, of an allocator that had reserved more before it began."""
    trace = TraceBuilder()
    trace.operator("aten::mm", 0, 10)
    trace.memory(
        40 * MIB,
        1,
        address=0x1000,
        device_type=1,
        device_index=0,
        total_allocated=40 * MIB,
        total_reserved=reserved_mib * MIB,
    )
    trace.annotation("Optimizer.step#SGD.step", 11, 12)
    return trace


def test_the_need_is_never_below_what_the_allocator_held() -> None:
    estimate = xmem.estimate(held_before(1676).bytes(), gpu="rtx-3060")
    assert estimate.measured is not None
    assert estimate.measured.peak_reserved_bytes == 1676 * MIB
    assert estimate.measured.replay_agrees is False
    assert estimate.peak_reserved_bytes == 1676 * MIB
    assert estimate.device_peak_bytes == 1676 * MIB + estimate.context_bytes
    (said,) = [each for each in estimate.diagnostics if each.kind == "memory_before_the_trace"]
    assert "1.64 GiB" in said.message
    assert estimate.interval is not None
    assert estimate.interval.high_bytes >= estimate.device_peak_bytes


def test_a_card_that_is_smaller_than_what_was_held_does_not_fit() -> None:
    trace = held_before(1676).bytes()
    assert xmem.estimate(trace, capacity="1.5GiB").fits is False
    assert xmem.estimate(trace, capacity="4GiB").fits is True


@pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces here")
@pytest.mark.parametrize(
    ("name", "reserved_mib"),
    [
        ("ddp_training_v100.json.gz", 12190),
        ("h100_qwen_inference.json.gz", 2508),
        ("t4_toy_training_fp32.json.gz", 266),
        ("rocm_bert_small_inference.json.gz", 214),
    ],
)
def test_real_traces_need_what_their_allocator_reserved(name: str, reserved_mib: int) -> None:
    estimate = xmem.estimate(TRACES / name, gpu="a100-40gb")
    assert estimate.peak_reserved_bytes == reserved_mib * MIB
