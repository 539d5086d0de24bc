"""State from before a trace of somebody else's began: held against runs whose tensors are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import xmem
from policies.applied import applied
from xmem.estimation.calibration import LibraryResiduals
from xmem.orchestration.lifetimes.state_before_trace import AddStateBeforeTrace
from xmem.testing.trace_builder import TraceBuilder

WIDTH, LAYERS = 256, 3
MODEL = LAYERS * 4 * (WIDTH * WIDTH + WIDTH)


def record(
    path: Path, optimizer: str, *, warm: bool, shapes: bool, trains: bool = True, **options: object
) -> Path:
    """Record three iterations as people do it, with torch.profiler alone."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    makes = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01, **options)

    def iterations(count: int) -> None:
        for _ in range(count):
            x = torch.randn(8, WIDTH)
            if not trains:
                with torch.no_grad():
                    model(x)
                continue
            model(x).sum().backward()
            makes.step()
            makes.zero_grad()

    if warm:
        iterations(2)
    with torch.profiler.profile(profile_memory=True, record_shapes=shapes) as profiler:
        iterations(3)
    profiler.export_chrome_trace(str(path))
    return path


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "no shapes"])
@pytest.mark.parametrize(
    ("optimizer", "options", "states"),
    [
        ("Adam", {}, 2),
        ("AdamW", {"amsgrad": True}, 3),
        ("SGD", {}, 0),
        ("SGD", {"momentum": 0.9}, 1),
        ("RMSprop", {}, 1),
        ("Adadelta", {}, 2),
    ],
)
def test_parameters_gradients_and_state_are_counted(
    tmp_path: Path, optimizer: str, options: dict[str, object], states: int, warm: bool, shapes: bool
) -> None:
    trace = record(tmp_path / "trace.json", optimizer, warm=warm, shapes=shapes, **options)
    at_peak = xmem.estimate(trace, gpu="rtx-3090").breakdown.category
    assert at_peak["parameter"] == MODEL
    assert at_peak["gradient"] == MODEL
    counters = 2 * LAYERS * 4  # of RMSprop and others, `step` is a number for each tensor
    assert states * MODEL <= at_peak.get("optimizer_state", 0) <= states * MODEL + 3 * counters


NEAR = LibraryResiduals(dict.fromkeys("abc", ((0.0, 0.02), (0.02, -0.02), (0.0, 0.0))))
FAR = LibraryResiduals({"a": ((0.0,),) * 8, "b": ((0.1,),) * 8})


def test_a_kind_of_trace_whose_bounds_did_not_hold_elsewhere_has_no_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {"foreign": {"other": NEAR}, "foreign_without_shapes": {"other": FAR, "convolutional": NEAR}}
    monkeypatch.setattr("xmem.estimation.calibration.shipped", lambda: measured)
    with_shapes = xmem.estimate(record(tmp_path / "with.json", "SGD", warm=True, shapes=True), gpu="rtx-3090")
    assert with_shapes.interval is not None
    assert with_shapes.interval.basis.startswith("9 measured jobs of 3 libraries (foreign, other)")
    assert not any("no interval" in each for each in with_shapes.assumptions)
    without = xmem.estimate(record(tmp_path / "without.json", "SGD", warm=True, shapes=False), gpu="rtx-3090")
    assert without.interval is None
    assert without.doubt is not None
    assert [each for each in without.assumptions if each.startswith("there is no interval")] == [
        "there is no interval: estimates of such traces were held against measured needs, and bounds made "
        "from some libraries did not hold for the others often enough; record it with record_shapes=True"
    ]


def test_inference_counts_the_weights_that_operators_were_given(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace.json", "SGD", warm=True, shapes=True, trains=False)
    estimate = xmem.estimate(trace, gpu="rtx-3090")
    assert estimate.breakdown.category["parameter"] == MODEL
    assert estimate.interval is None
    assert estimate.doubt == "It may not fit: the trace shows only a part of the run"
    assert any("taken as inference" in each for each in estimate.assumptions)


def test_inference_without_shapes_says_that_weights_are_not_counted(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace.json", "SGD", warm=True, shapes=False, trains=False)
    estimate = xmem.estimate(trace, gpu="rtx-3090")
    assert "parameter" not in {name for name, size in estimate.breakdown.category.items() if size}
    assert any(
        "its weights are not counted; record it with record_shapes" in each for each in estimate.assumptions
    )


def linear_inference() -> TraceBuilder:
    return TraceBuilder().operator(
        "aten::linear", 0, 9, input_dims=[[2, 64], [32, 64], [32]], input_types=["float", "float", "float"]
    )


def test_weights_have_the_shapes_that_their_operator_was_given() -> None:
    after, change = applied(AddStateBeforeTrace(), linear_inference().alloc(0x10, 256, 5).free(0x10, 20))
    assert change.blocks_changed == 2
    assert sorted(after.size_bytes.tolist()) == [32 * 4, 256, 32 * 64 * 4]


def test_a_weight_that_the_trace_saw_is_not_counted_twice() -> None:
    trace = TraceBuilder().alloc(0x1, 32 * 64 * 4, 1).alloc(0x2, 32 * 4, 2)
    trace.operator(
        "aten::linear", 10, 19, input_dims=[[2, 64], [32, 64], [32]], input_types=["float", "float", "float"]
    )
    after, _ = applied(AddStateBeforeTrace(), trace.alloc(0x10, 256, 15).free(0x10, 20))
    assert np.sort(after.size_bytes).tolist() == [32 * 4, 256, 32 * 64 * 4]
