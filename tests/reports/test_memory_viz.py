"""Snapshots of estimates: whole stacks; PyTorch's own viewer and the simulator read them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from xmem.estimation.analysis import Analysis
from xmem.estimation.pipeline import analyze
from xmem.reports.profiles.memory_viz import write_memory_viz
from xmem.snapshot.comparison import compare
from xmem.snapshot.snapshot import read_snapshot


def snapshot_of(analysis: Analysis, folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "run.pickle"
    with path.open("wb") as file:
        write_memory_viz(analysis, file)
    snapshot: dict[str, Any] = pickle.loads(path.read_bytes())
    return path, snapshot


def test_a_stack_reads_from_the_operator_to_the_category(predicted: Analysis, tmp_path: Path) -> None:
    _, snapshot = snapshot_of(predicted, tmp_path)
    allocs = [event for event in snapshot["device_traces"][0] if event["action"] == "alloc"]
    shown = [
        [(frame["filename"], frame["line"], frame["name"]) for frame in event["frames"]] for event in allocs
    ]
    assert shown[-1] == [
        ("operator", 0, "aten::empty"),
        ("operator", 0, "aten::linear"),
        ("layers/linear.py", 3, "Linear.forward"),
        ("train.py", 7, "Net.forward"),
        ("module", 0, "Net.fc"),
        ("module", 0, "Net"),
        ("phase", 0, "forward"),
        ("category", 0, "temporary"),
    ]
    backward = next(stack for stack in shown if ("category", 0, "gradient") in stack)
    assert [name for kind, _, name in backward if kind == "operator"] == [
        "AddmmBackward0",
        "autograd::engine::evaluate_function: AddmmBackward0",
    ]
    assert allocs[-1]["category"] == "temporary"


def test_blocks_of_one_origin_share_a_stack(analysis: Analysis, tmp_path: Path) -> None:
    _, snapshot = snapshot_of(analysis, tmp_path)
    stacks = {id(event["frames"]) for event in snapshot["device_traces"][0]}
    shared = {id(stack) for stack in snapshot["xmem"]["stacks"]}
    assert stacks <= shared
    assert len(shared) < len(snapshot["device_traces"][0])


def test_the_public_viewer_knows_every_category(analysis: Analysis, tmp_path: Path) -> None:
    """It fails where events have categories and none of them is `unknown`."""
    _, snapshot = snapshot_of(analysis, tmp_path)
    assert "unknown" in {event["category"] for event in snapshot["device_traces"][0]}


@pytest.mark.parametrize("target", [{}, {"capacity": "272MiB"}, {"alloc_conf": "expandable_segments:True"}])
def test_the_simulator_replays_it_again(target: dict[str, Any], trace: Path, tmp_path: Path) -> None:
    analysis = analyze(trace, **target)
    assert analysis.estimate.fits is (False if "capacity" in target else None)
    path, _ = snapshot_of(analysis, tmp_path)
    comparison = compare(read_snapshot(path), torch_version="2.13")
    assert comparison.agrees


def test_what_it_holds_at_the_peak_is_the_estimate(analysis: Analysis, tmp_path: Path) -> None:
    path, _ = snapshot_of(analysis, tmp_path)
    (device,) = compare(read_snapshot(path), torch_version=analysis.estimate.target.torch_version).devices
    assert device.peak_reserved_bytes == analysis.estimate.peak_reserved_bytes - analysis.verdict.missed_bytes


def test_the_viewer_of_pytorch_opens_it(analysis: Analysis, tmp_path: Path) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz", reason="torch is not installed here")
    _, snapshot = snapshot_of(analysis, tmp_path)

    assert "<html>" in viewer.trace_plot(snapshot)
    assert "<html>" in viewer.trace_plot(snapshot, plot_segments=True)
    assert "<html>" in viewer.segment_plot(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in viewer.segsum(snapshot)
    assert f"{len(snapshot['device_traces'][0])} entries" in viewer.trace(snapshot)
