"""Where the memory of a run goes: holders, modules, lines, the largest blocks, the number on the card."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import xmem
from training_sample import MIB, training
from xmem.breakdown.execution import Delta, enclosing_spans, execution_of, innermost
from xmem.breakdown.lines import bytes_by_line
from xmem.breakdown.modules import ModuleNode, module_tree
from xmem.errors import TraceError
from xmem.estimation.analysis import Analysis
from xmem.estimation.card import card_parts
from xmem.estimation.pipeline import analyze
from xmem.trace.attribution import Category, Phase


def analysis() -> Analysis:
    return xmem.analyze(training().bytes(), gpu="rtx-3060")


def node(root: ModuleNode, path: str) -> ModuleNode:
    return next(found for found in root.walk() if found.path == path)


def test_holders_of_a_step() -> None:
    found = analysis()
    holders, workload = found.holders, found.stages.workload
    gradient = np.flatnonzero((workload.size_bytes == 4 * MIB) & (holders.phase == Phase.BACKWARD))
    assert [holders.module_name(row) for row in gradient] == ["Net.fc", "Net.fc"]
    assert [holders.line_name(row) for row in gradient] == ["train.py:7", "train.py:7"]
    assert not holders.persistent[gradient].any(), "zero_grad frees them in their own iteration"
    weight = int(np.flatnonzero(workload.category == Category.PARAMETER)[0])
    assert holders.persistent[weight]
    assert holders.phase[weight] == Phase.OTHER
    assert holders.free_request[weight] == len(found.stages.requests)


def test_alive_is_what_the_replay_counts() -> None:
    found = analysis()
    held = found.replay.placement.size_bytes
    for request in range(len(found.stages.requests)):
        alive = found.holders.alive_at(request)
        assert held[alive].sum() == found.replay.timeline.allocated_bytes[request]


def test_paths_sum_to_the_peak() -> None:
    estimate = analysis().estimate
    paths = estimate.breakdown.paths
    assert sum(path.bytes + path.slack_bytes for path in paths) == estimate.peak_allocated_bytes
    for category, size in estimate.breakdown.category.items():
        if category == "allocator_slack":
            assert sum(path.slack_bytes for path in paths) == size
        else:
            assert sum(path.bytes for path in paths if path.category == category) == size
    assert [path.bytes + path.slack_bytes for path in paths] == sorted(
        (path.bytes + path.slack_bytes for path in paths), reverse=True
    )


def test_many_paths_are_merged_and_still_sum_up(monkeypatch: pytest.MonkeyPatch) -> None:
    persistent = analysis().estimate.breakdown.persistent_bytes
    monkeypatch.setattr("xmem.estimation.evidence._MOST_PATHS", 2)
    estimate = analysis().estimate
    paths = estimate.breakdown.paths
    assert {path.module for path in paths[2:]} == {"(smaller)"}
    assert estimate.breakdown.persistent_bytes == persistent
    assert persistent is not None
    assert 0 < persistent < estimate.peak_allocated_bytes
    assert sum(path.bytes + path.slack_bytes for path in paths) == estimate.peak_allocated_bytes


def test_the_tree_of_modules() -> None:
    found = analysis()
    root = module_tree(found, execution_of(found)).root
    assert root.bytes == found.estimate.peak_allocated_bytes
    assert sum(child.bytes for child in root.children) == root.bytes
    layer = node(root, "Net.fc")
    assert layer.tensors == {
        "parameter": 4 * MIB + 1024,
        "gradient": 4 * MIB + 1024,
        "optimizer_state": 4 * MIB,
    }
    # The forward leaves its result; the backward lets it go and leaves the gradients.
    assert layer.forward is not None
    assert layer.forward.allocated_bytes == 3 * MIB
    assert layer.backward is not None
    assert layer.backward.allocated_bytes == 4 * MIB + 1024 - 3 * MIB
    assert node(root, "Net").forward == layer.forward


def test_deltas_of_a_changed_script_are_not_known() -> None:
    found = xmem.analyze(training().bytes(), what_if=["zero_grad=after_step"])
    root = module_tree(found, execution_of(found)).root
    assert root.forward is None
    assert root.backward is None
    assert root.bytes == found.estimate.peak_allocated_bytes


def test_lines() -> None:
    found = analysis()
    lines = {line.line: line for line in bytes_by_line(found, execution_of(found))}
    assert lines[7].file == "train.py"
    assert lines[7].forward == Delta(3 * MIB, lines[7].forward.reserved_bytes)  # type: ignore[union-attr]
    assert lines[7].bytes == found.estimate.breakdown.source_line["train.py:7"]
    assert lines[7].function == ""


def test_lines_tell_their_function_and_text_where_the_trace_does() -> None:
    notes = {"train.py:7": {"function": "train", "text": "loss = model(x)"}}
    found = xmem.analyze(training().with_metadata(lines=notes).bytes())
    line = next(line for line in bytes_by_line(found, execution_of(found)) if line.line == 7)
    assert (line.function, line.text) == ("train", "loss = model(x)")


def test_the_largest_blocks_in_words() -> None:
    words = {block.words for block in analysis().estimate.largest_blocks}
    assert "parameter Net.fc.weight to the end of the run" in words
    assert "gradient of Net.fc.weight from train.py:7 until it is freed in zero_grad" in words
    assert "saved for backward by Net.fc from train.py:7 until its backward" in words


def test_a_batch_is_its_line_s_and_no_operator_s() -> None:
    trace = training()
    for t in (10, 110):
        trace.line("train.py", 5, t + 5.1, t + 5.9).operator("aten::to", t + 5.2, t + 5.8)
        trace.alloc(0x88, 2 * MIB, t + 5.5).tensor("input", "train.py:5", 0x88, 2 * MIB, t + 6)
        trace.free(0x88, t + 95)
    words = [block.words for block in xmem.analyze(trace.bytes()).estimate.largest_blocks]
    assert "batch from train.py:5 until it is freed in the same iteration" in words


def test_the_card_is_the_device_peak() -> None:
    estimate = analysis().estimate
    parts = {part.name: part.bytes for part in estimate.card}
    assert sum(parts.values()) == estimate.device_peak_bytes
    assert parts["context"] == estimate.context_bytes
    assert all(size >= 0 for size in parts.values())
    assert list(parts) == [
        "context", "tensors", "cublas_workspaces", "cudnn_workspaces", "other_workspaces", "rounding",
        "fragmentation", "cached",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "part"),
    [
        ("aten::addmm", "cublas_workspaces"),
        ("aten::conv2d", "cudnn_workspaces"),
        ("ConvolutionBackward0", "cudnn_workspaces"),
        ("aten::gru", "cudnn_workspaces"),
        ("aten::sum", "other_workspaces"),
    ],
)
def test_a_workspace_is_of_the_library_whose_kernel_takes_it(operator: str, part: str) -> None:
    trace = training()
    for t in (10, 110):
        trace.operator(operator, t + 20.1, t + 20.9).alloc(0x77, 8 * MIB, t + 20.5).free(0x77, t + 95)
    found = analyze(trace.bytes(), without_policies=["add_cublas_workspaces"])  # none but ours
    stages, workload = found.stages, found.stages.workload
    category = np.where(workload.size_bytes == 8 * MIB, Category.WORKSPACE, workload.category)
    marked = workload.with_columns(category=category.astype(np.uint8))
    parts = {row.name: row.bytes for row in card_parts(stages.trace, marked, found.holders, found.verdict)}
    assert {name for name in parts if name.endswith("_workspaces") and parts[name]} == {part}
    assert parts[part] == 8 * MIB
    assert sum(parts.values()) == found.replay.peak_reserved.bytes


def test_the_curve_has_both_peaks() -> None:
    curve = analysis().estimate.curve
    assert curve is not None
    estimate = analysis().estimate
    assert max(curve.allocated_bytes) == estimate.peak_allocated_bytes
    assert max(curve.reserved_bytes) == estimate.peak_reserved_bytes
    assert list(curve.time_ns) == sorted(curve.time_ns)


def test_innermost_against_a_search() -> None:
    generator = np.random.default_rng(3)
    for _ in range(100):
        spans: list[tuple[int, int]] = []

        def add(begin: int, end: int, into: list[tuple[int, int]] = spans) -> None:
            into.append((begin, end))
            at = begin
            while at < end and generator.random() < 0.7:
                inner = int(generator.integers(at, end + 1))
                last = int(generator.integers(inner, end + 1))
                if (inner, last) == (begin, end) or last <= inner:
                    return
                add(inner, last)
                at = last

        add(0, 60)
        order = generator.permutation(len(spans))
        begins = np.array([spans[at][0] for at in order], np.int64)
        ends = np.array([spans[at][1] for at in order], np.int64)
        times = np.arange(-2, 63)
        for time, at in zip(times.tolist(), innermost(begins, ends, times).tolist(), strict=True):
            holding = [span for span in range(len(begins)) if begins[span] <= time < ends[span]]
            shortest = min((int(ends[span] - begins[span]) for span in holding), default=0)
            assert (int(ends[at] - begins[at]) if at >= 0 else 0) == shortest
        for span, parent in enumerate(enclosing_spans(begins, ends).tolist()):
            if parent >= 0:
                assert begins[parent] <= begins[span]
                assert ends[span] <= ends[parent]


SHARED = Path(os.environ.get("XMEM_SHARED", Path(__file__).parents[4] / "shared"))
TRACES = SHARED / "data" / "traces"


@pytest.mark.skipif(not TRACES.is_dir(), reason="the recordings are not here")
def test_recordings_of_gpus_are_broken_down_too() -> None:
    told = 0  # all but one without memory events
    for path in sorted(TRACES.glob("*.json.gz")):
        try:
            found = xmem.analyze(path)
        except TraceError:
            continue
        told += 1
        root = module_tree(found, execution_of(found)).root
        assert root.bytes == found.estimate.peak_allocated_bytes
        paths = found.estimate.breakdown.paths
        assert sum(entry.bytes + entry.slack_bytes for entry in paths) == root.bytes
        assert sum(part.bytes for part in found.estimate.card) == found.estimate.device_peak_bytes
        assert sum(line.bytes for line in bytes_by_line(found, execution_of(found))) <= root.bytes
    assert told == len(list(TRACES.glob("*.json.gz"))) - 1
