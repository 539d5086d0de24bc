"""From a script to the answer: the estimate of real captures against what the model itself says."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xmem
from nightly import most_nightly
from xmem.breakdown.execution import execution_of
from xmem.breakdown.modules import module_tree
from xmem.trace.blocks import NEVER

from .conftest import Captured, needs_torch, run_capture

pytestmark = needs_torch

EXAMPLES = Path(__file__).parents[2] / "examples"
Capturing = Callable[..., Captured]

DEMOS = {
    "train_gpt2.py": (
        "--layers",
        "2",
        "--width",
        "128",
        "--heads",
        "4",
        "--vocab-size",
        "1000",
        "--seq-len",
        "64",
    ),
    "train_resnet.py": ("--batch-size", "4", "--image-size", "64"),
}


def rounded(size_bytes: int) -> int:
    """As the caching allocator rounds: to 512 bytes."""
    return -(-size_bytes // 512) * 512


@pytest.fixture(scope="module", params=DEMOS)
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Captured]:
    script: str = request.param
    command = [sys.executable, str(EXAMPLES / script), *DEMOS[script]]
    return script, run_capture(tmp_path_factory.mktemp("demo"), command, timeout_s=120)


def model_of(script: str) -> Any:
    """The demo's model, built by the demo's own code without training it."""
    module = runpy.run_path(str(EXAMPLES / script))
    if script == "train_resnet.py":
        return module["ResNet18"](classes=1000)
    return module["GPT"](vocab_size=1000, seq_len=64, layers=2, width=128, heads=4, dropout=0.1)


def test_parameters_gradients_and_state_are_those_of_the_model_to_the_byte(
    demo: tuple[str, Captured],
) -> None:
    script, run = demo
    estimate = xmem.estimate(run.result.path, gpu="rtx-3060")
    parameters = sum(rounded(p.untyped_storage().nbytes()) for p in model_of(script).parameters())
    held = estimate.breakdown.category_peaks
    states = {"train_gpt2.py": 2, "train_resnet.py": 1}[script]  # AdamW keeps two, SGD's momentum one
    assert held["parameter"] == parameters
    assert held["gradient"] == parameters
    assert held["optimizer_state"] == states * parameters
    assert estimate.breakdown.category["parameter"] == parameters
    assert estimate.breakdown.category["optimizer_state"] == states * parameters


def test_the_breakdown_explains_every_byte(demo: tuple[str, Captured]) -> None:
    _, run = demo
    estimate = xmem.estimate(run.result.path, gpu="rtx-3060")
    breakdown = estimate.breakdown
    for view in (breakdown.category, breakdown.module, breakdown.operator, breakdown.source_line):
        assert sum(view.values()) == estimate.peak_allocated_bytes
    assert breakdown.category.get("unknown", 0) == 0
    assert estimate.peak.phase in ("forward", "backward", "optimizer_step")
    assert estimate.peak.source_line is not None
    assert estimate.peak.source_line.rpartition(":")[0].endswith(f"examples/{demo[0]}")
    assert estimate.fits is True
    assert estimate.trace.source == "capture"


def test_each_module_holds_what_its_named_parameters_say(demo: tuple[str, Captured]) -> None:
    script, run = demo
    analysis = xmem.analyze(run.result.path, gpu="rtx-3060")
    root = module_tree(analysis, execution_of(analysis)).root
    model = model_of(script)
    states = {"train_gpt2.py": 2, "train_resnet.py": 1}[script]
    found = {node.path: node for node in root.walk()}
    top = type(model).__name__
    held = {name: rounded(p.untyped_storage().nbytes()) for name, p in model.named_parameters()}
    for name, _ in model.named_modules():  # a weight that two modules share is the first one's
        expected = sum(
            size for path, size in held.items() if f"{path}.".startswith(f"{name}." if name else "")
        )
        if not expected:
            continue
        tensors = found[f"{top}.{name}" if name else top].tensors
        assert tensors["parameter"] == expected, name
        assert tensors["gradient"] == expected, name
        assert tensors["optimizer_state"] == states * expected, name


def test_nearly_every_byte_has_a_category_and_a_place(demo: tuple[str, Captured]) -> None:
    _, run = demo
    estimate = xmem.estimate(run.result.path, gpu="rtx-3060")
    placed = sum(
        path.bytes + path.slack_bytes
        for path in estimate.breakdown.paths
        if path.category != "unknown" and (path.module or path.source_line)
    )
    assert placed >= 0.98 * estimate.peak_allocated_bytes


def test_the_demos_end_where_they_should(demo: tuple[str, Captured]) -> None:
    """What lives at the end of the run: parameters, state, gradients of the last step, outputs; no leak."""
    from xmem.estimation.pipeline import run_stages

    _, run = demo
    workload = run_stages(run.result.path).workload
    alive = workload.select(workload.free_ns == NEVER)
    leftovers = alive.size_bytes[(alive.iteration >= 0) & (alive.iteration < 1) & (alive.category == 6)]
    assert leftovers.sum() == 0, "activations of the first iteration are alive at the end"


@pytest.mark.parametrize(
    ("script", "arguments"),
    most_nightly(
        [
            ("to_device.py", ()),
            ("encoder_workers.py", ("--workers", "2", "--epochs", "2")),
            ("resnet.py", ()),
            ("dcgan.py", ()),
            ("lbfgs.py", ()),
            ("amp_scaler.py", ()),
            ("gpt.py", ()),
            ("plain_cpu.py", ()),
            ("hf_trainer.py", ()),
        ],
        at_once=2,
    ),
)
def test_every_target_script_is_estimated_and_explained(
    captured: Capturing, script: str, arguments: tuple[str, ...]
) -> None:
    run = captured(script, *arguments)
    estimate = xmem.estimate(run.result.path, gpu="rtx-3060")
    named = {row["name"]: row["size_bytes"] for row in run.tensors("parameter")}
    assert sum(module["parameter_bytes"] for module in run.xmem["modules"]) == sum(named.values())
    assert estimate.breakdown.category_peaks["parameter"] == sum(map(rounded, named.values()))
    assert estimate.breakdown.category.get("unknown", 0) == 0
    assert sum(estimate.breakdown.category.values()) == estimate.peak_allocated_bytes
    assert not [problem for problem in estimate.diagnostics if problem.severity != "info"]


def test_a_script_that_never_asks_for_a_gpu_is_taken_as_if_it_did(captured: Capturing) -> None:
    estimate = xmem.estimate(captured("plain_cpu.py").result.path)
    assert any("never asks for a GPU" in assumption for assumption in estimate.assumptions)
    assert estimate.breakdown.category_peaks["parameter"] > 0
