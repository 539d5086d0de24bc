"""A model fitted from captures at two batch sizes, asked at a third: what a capture there says."""

from __future__ import annotations

import sys

import pytest

import xmem
from xmem.devices.gpus import find_device
from xmem.estimation.analysis import Stages
from xmem.estimation.observation import Observation, observe
from xmem.estimation.pipeline import run_stages
from xmem.estimation.question import Question
from xmem.scaling import Sample, fit

from .conftest import TARGETS, needs_torch, run_capture

pytestmark = [needs_torch, pytest.mark.nightly]

BATCHES, ASKED = (2, 3), 8


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Observation]:
    """Of a script with every layer that a policy looks at the inputs of."""

    def run(batch: int) -> Observation:
        folder = tmp_path_factory.mktemp(f"batch{batch}")
        captured = run_capture(folder, [sys.executable, str(TARGETS / "every_layer.py"), str(batch)])
        return observe(xmem.read_trace(captured.result.path))

    return {batch: run(batch) for batch in (*BATCHES, ASKED)}


@pytest.fixture(scope="module", params=["rtx-3060", "h100"])
def both(runs: dict[int, Observation], request: pytest.FixtureRequest) -> tuple[Stages, Stages]:
    """At the point that was asked for: the fitted run, and the captured one."""
    model = fit([Sample({"batch": batch}, runs[batch]) for batch in BATCHES])
    device = find_device(request.param)
    question = Question(device)
    return run_stages(model.at(batch=ASKED), question), run_stages(runs[ASKED], question)


def test_every_policy_changes_what_it_changes_in_the_capture(both: tuple[Stages, Stages]) -> None:
    changes = [
        {change.name: (change.blocks_changed, change.bytes_changed) for change in stages.changes}
        for stages in both
    ]
    assert changes[0] == changes[1]
    by_inputs = {
        "replace_attention",
        "replace_recurrent_layers",
        "order_convolution_blocks",
        "add_embedding_backward_buffers",
        "add_index_backward_buffers",
        "add_reduction_buffers",
    }
    assert not [name for name in by_inputs if changes[0][name][0] == 0]


def test_the_allocator_is_asked_for_the_same_in_the_same_order(both: tuple[Stages, Stages]) -> None:
    fitted, captured = (
        [
            (int(kind), int(stages.requests.size_bytes[block]) if block >= 0 else int(block))
            for kind, block in zip(stages.requests.kind, stages.requests.block, strict=True)
        ]
        for stages in both
    )
    assert fitted == captured
    assert both[0].unlimited.peak_reserved == both[1].unlimited.peak_reserved
