"""Which line is named, and what to write there."""

from __future__ import annotations

import xmem
from whatif.nested_sample import nested
from whatif.test_chunked_loss import cross_entropy
from xmem.advice.candidates import Candidate, candidates
from xmem.advice.trial import Trial
from xmem.testing.trace_builder import TraceBuilder


def found(trace: TraceBuilder) -> dict[str, Candidate]:
    analysis = xmem.analyze(trace.bytes())
    return {each.what_if: each for each in candidates(analysis, Trial.of(analysis))}


def of_lines(*lines: str) -> TraceBuilder:
    """The nested sample with other lines in the block."""
    trace = nested()
    for event in trace.events:
        if event["name"] in ("/job/train.py:7", "/job/train.py:8"):
            event["name"] = lines[event["name"] == "/job/train.py:8"]
    return trace


def test_a_module_that_runs_lines_of_its_own_is_named_by_a_line_beside_its_call() -> None:
    candidate = found(nested())["checkpoint=Net.block"]
    assert candidate.where == "/job/train.py:9"
    assert candidate.change.startswith("here or above, call Net.block as ")
    assert "checkpoint(block, x, use_reentrant=False)" in candidate.change

    trace = nested()
    trace.line("/job/train.py", 6, 10 + 10, 10 + 11)
    candidate = found(trace)["checkpoint=Net.block"]
    assert candidate.where == "/job/train.py:6"
    assert candidate.change.startswith("here or below, call Net.block as ")


def test_lines_within_other_modules_are_not_beside_a_call() -> None:
    trace = nested()
    trace.module("Net.other", 10 + 40, 10 + 42)
    trace.line("/job/train.py", 30, 10 + 40, 10 + 41).line("/job/train.py", 31, 10 + 41, 10 + 42)
    assert found(trace)["checkpoint=Net.block"].where == "/job/train.py:9"


def test_a_container_is_looked_through_for_a_line_beside_a_call() -> None:
    trace = nested()
    trace.module("Net.layers", 10 + 11, 10 + 41)
    assert found(trace)["checkpoint=Net.block"].where == "/job/train.py:9"


def test_a_module_without_a_line_beside_its_call_is_named_by_its_path() -> None:
    trace = nested()
    trace.events[:] = [event for event in trace.events if event["name"] != "/job/train.py:9"]
    assert found(trace)["checkpoint=Net.block"].where == "Net.block"


def test_autocast_goes_where_the_loss_is_made() -> None:
    trace = nested()
    assert found(trace)["precision=bf16-autocast"].where == "Net"
    trace.line("/job/train.py", 18, 10 + 62, 10 + 68).operator("aten::mean", 10 + 63, 10 + 67)
    trace.alloc(0x77, 512, 10 + 64)
    assert found(trace)["precision=bf16-autocast"].where == "/job/train.py:18"


def test_a_module_that_runs_none_is_named_by_the_line_that_calls_it() -> None:
    candidate = found(of_lines("train.py:5", "train.py:5"))["checkpoint=Net.block"]
    assert candidate.where == "train.py:5"


def test_a_module_of_a_package_is_not_to_be_edited() -> None:
    lines = "train.py:5 < transformers/gpt2.py:30", "train.py:5 < transformers/gpt2.py:31"
    candidate = found(of_lines(*lines))["checkpoint=Net.block"]
    assert candidate.where == "train.py:5"
    assert "block.forward = functools.partial(" in candidate.change


def test_the_step_stands_where_its_line_is() -> None:
    trace = nested()
    trace.line("/job/train.py", 21, 10 + 171, 10 + 179)
    assert found(trace)["zero_grad=after_step"].where == "/job/train.py:21"


def test_chunks_go_to_the_line_of_the_loss_whatever_is_alive_at_the_peak() -> None:
    trace = cross_entropy()
    trace.line("/job/model.py", 7, 19, 27).line("/job/train.py", 8, 29, 47)
    assert found(trace)["chunk_loss=8"].where == "/job/train.py:8"
    trace.alloc(0x20, 64 << 20, 124).free(0x20, 126)  # the peak is in the backward pass of the last layer
    assert found(trace)["chunk_loss=8"].where == "/job/train.py:8"
