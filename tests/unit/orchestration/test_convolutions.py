"""Convolutions of a trace: what each computes on CUDA, the order of its blocks, and its workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
import pytest

from xmem.cudnn.planner_settings import PlannerSettings
from xmem.cudnn.problems import ConvolutionProblem, Operation
from xmem.cudnn.workspaces import Answer, Workspaces
from xmem.devices.gpus import find_device
from xmem.estimation.calibration import Residuals
from xmem.estimation.move import move
from xmem.estimation.observation import Observation, observe
from xmem.estimation.pipeline import estimate
from xmem.estimation.question import ask
from xmem.orchestration.convolution.convolution_calls import Call, read_call, settings_of
from xmem.orchestration.convolution.cudnn_convolutions import AddConvolutionWorkspaces, OrderConvolutionBlocks
from xmem.orchestration.kernels.onednn_temporaries import DropOneDnnTemporaries
from xmem.orchestration.policy import apply_policies
from xmem.records import dataclass
from xmem.run.inputs import RecordedInputs
from xmem.run.operators import OperatorIndex
from xmem.run.recorded import Context
from xmem.run.target import Target
from xmem.run.workload import Workload, workload_of
from xmem.simulation.replay import RequestKind, replay
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.attribution import Category, attribute
from xmem.trace.blocks import CPU, NEVER, pair_blocks
from xmem.trace.trace import Trace, read_trace

MIB = 1 << 20
X, W, Y = [4, 64, 32, 32], [128, 64, 3, 3], [4, 128, 32, 32]
X_BYTES, W_BYTES, Y_BYTES, BIAS_BYTES = 4 * 64 * 1024 * 4, 128 * 64 * 9 * 4, 4 * 128 * 1024 * 4, 128 * 4


def contiguous(sizes: Sequence[int]) -> list[int]:
    return [int(np.prod(sizes[place + 1 :])) for place in range(len(sizes))]


def channels_last(sizes: Sequence[int]) -> list[int]:
    _, channels, height, width = sizes
    return [channels * height * width, 1, width * channels, channels]


@dataclass
class Given:
    """What a convolution was given, as the profiler writes it."""

    x: list[int] = field(default_factory=lambda: X)
    w: list[int] = field(default_factory=lambda: W)
    dy: list[int] | None = None
    dtype: str = "float"
    strides: list[list[int]] | None = None
    stride: str = "[1, 1]"
    padding: str = "[1, 1]"
    transposed: str = "False"
    groups: str = "1"
    mask: str = "[True, True, True]"
    flags: tuple[str, ...] = ("False", "False", "True", "True")  # benchmark, deterministic, enabled, TF32

    @property
    def name(self) -> str:
        return "aten::_convolution" if self.dy is None else "aten::convolution_backward"

    def args(self) -> dict[str, Any]:
        tensors = [self.x, self.w] if self.dy is None else [self.dy, self.x, self.w]
        plain = [self.stride, self.padding, "[1, 1]", self.transposed, "[0, 0]", self.groups]
        plain += list(self.flags) if self.dy is None else [self.mask]
        concrete = ["", "", "", *plain] if self.dy is None else ["", "", "", "[128]", *plain]
        return {
            "Input Dims": [*tensors, *([] for _ in plain)],
            "Input Strides": self.strides or [contiguous(tensor) for tensor in tensors],
            "Concrete Inputs": concrete,
            "input_types": [self.dtype] * len(tensors) + ["Scalar"] * len(plain),
        }

    def call(self) -> Call | None:
        trace = read_trace(TraceBuilder().operator(self.name, 0, 10, **self.args()).bytes())
        return call_of(trace, backward=self.dy is not None)


def call_of(trace: Trace, *, backward: bool) -> Call | None:
    """The trace's only operator."""
    operators = OperatorIndex(trace)
    (dtype,) = operators.first_input_type(np.array([0], np.int32))
    return read_call(operators.inputs(0), dtype, backward=backward)


def only_problem(given: Given) -> ConvolutionProblem | None:
    call = given.call()
    assert call is not None
    (problem,) = call.problems
    return problem


def test_a_convolution_forward() -> None:
    call = Given().call()
    assert call is not None
    assert call.results == (Y_BYTES,)
    assert call.copies == ()
    (problem,) = call.problems
    ones = (1, 1)
    assert problem == ConvolutionProblem(
        Operation.FORWARD, "float32", tuple(X), tuple(W), tuple(Y), ones, ones, ones
    )


def test_the_gradients_that_are_asked_for() -> None:
    call = Given(dy=Y, mask="[False, True, True]").call()
    assert call is not None
    assert call.results == (None, W_BYTES, BIAS_BYTES)
    assert [problem and problem.operation for problem in call.problems] == [
        None,
        Operation.FILTER_GRADIENT,
        None,
    ]


def test_a_transposed_convolution_is_a_gradient() -> None:
    given = Given(x=[4, 128, 16, 16], w=[128, 32, 2, 2], stride="[2, 2]", padding="[0, 0]", transposed="True")
    problem = only_problem(given)
    assert problem is not None
    assert problem.operation == Operation.DATA_GRADIENT
    assert (problem.x, problem.y) == ((4, 32, 32, 32), (4, 128, 16, 16))


def test_one_dimension_of_space_becomes_two() -> None:
    given = Given(x=[4, 8, 100], w=[16, 8, 5], stride="[2]", padding="[2]")
    given.strides = [contiguous(given.x), contiguous(given.w)]
    problem = only_problem(given)
    assert problem is not None
    assert (problem.x, problem.w, problem.y) == ((4, 8, 1, 100), (16, 8, 1, 5), (4, 16, 1, 50))
    assert (problem.stride, problem.padding) == ((1, 2), (0, 2))


@pytest.mark.parametrize(
    ("changes", "is_cudnn"),
    [
        ({}, False),
        ({"dtype": "c10::BFloat16"}, False),
        ({"dtype": "c10::Half"}, True),
        ({"dtype": "c10::Half", "stride": "[2, 2]"}, False),  # fewer than 256 channels
        ({"strides": [channels_last([4, 64, 32, 32]), contiguous([64, 1, 3, 3])]}, True),
        ({"groups": "32", "w": [64, 2, 3, 3]}, True),
        ({"flags": ("False", "False", "False", "True"), "groups": "32", "w": [64, 2, 3, 3]}, False),
    ],
)
def test_depthwise_convolutions_have_kernels_of_their_own(changes: dict[str, Any], is_cudnn: bool) -> None:
    given = Given(**{"x": [4, 64, 32, 32], "w": [64, 1, 3, 3], "groups": "64", **changes})
    assert (only_problem(given) is not None) == is_cudnn


def test_depthwise_kernels_make_the_gradient_of_the_filter_first() -> None:
    call = Given(x=[4, 64, 32, 32], w=[64, 1, 3, 3], dy=[4, 64, 32, 32], groups="64").call()
    assert call is not None
    assert call.results == (64 * 9 * 4, X_BYTES, 64 * 4)


def test_channels_last_and_copies() -> None:
    call = Given(strides=[channels_last(X), contiguous(W)]).call()
    assert call is not None
    assert call.copies == (W_BYTES,)
    (problem,) = call.problems
    assert problem is not None
    assert problem.channels_last


def test_a_layout_that_is_in_doubt_is_not_channels_last() -> None:
    problem = only_problem(Given(x=[4, 64, 1, 1], w=[128, 64, 1, 1], padding="[0, 0]"))
    assert problem is not None
    assert not problem.channels_last


def test_what_the_trace_does_not_say_is_not_guessed() -> None:
    for name in ("aten::_convolution", "aten::convolution_backward"):
        trace = read_trace(TraceBuilder().operator(name, 0, 10, input_types=["float"]).bytes())
        assert call_of(trace, backward=name.endswith("backward")) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"x": [4, 64]},
        {"x": [4, 64, 0, 32]},
        {"x": [4, [64], 1, 1], "strides": [[], []]},
        {"dtype": "long int"},
        {"stride": "[0, 0]"},
        {"stride": "[1, 1, 1]"},
        {"padding": "nothing"},
        {"groups": ""},
    ],
)
def test_what_cannot_be_a_convolution_is_none(changes: dict[str, Any]) -> None:
    assert Given(**changes).call() is None


def test_settings_are_those_of_the_script() -> None:
    given = Given(flags=("True", "True", "True", "False"))
    trace = read_trace(TraceBuilder().operator(given.name, 0, 10, **given.args()).bytes())
    settings = settings_of([RecordedInputs(trace).of(0)])
    assert settings == PlannerSettings(allow_tf32=False, deterministic=True, benchmark=True)


# A step of one layer: the forward and the backward as oneDNN allocates, temporaries before results.


def layer(**flags: Any) -> TraceBuilder:
    forward, backward = Given(**flags), Given(dy=Y)
    trace = TraceBuilder().with_metadata(device_requests=1, iterations=1)
    trace.operator(forward.name, 100, 200, sequence_number=1, **forward.args())
    trace.alloc(0x10, X_BYTES, 110).alloc(0x20, Y_BYTES, 120).free(0x10, 130)
    trace.operator("aten::empty", 139, 141).alloc(0x30, Y_BYTES, 140).free(0x20, 150)
    trace.operator(backward.name, 300, 400, **backward.args())
    trace.alloc(0x40, Y_BYTES, 310).operator("aten::empty", 319, 321).alloc(0x50, X_BYTES, 320).free(
        0x40, 330
    )
    trace.operator("aten::empty", 349, 351).alloc(0x60, W_BYTES, 350)
    trace.operator("aten::empty", 359, 361).alloc(0x70, BIAS_BYTES, 360)
    return trace.free(0x30, 450).free(0x50, 460)


@dataclass(frozen=True)
class Told(Workspaces):
    """Workspaces as told, by operation."""

    sizes: tuple[tuple[Operation, tuple[int, ...]], ...] = ()
    exact: bool = True

    def ask(self, problems: tuple[ConvolutionProblem, ...], settings: PlannerSettings) -> Answer:  # noqa: ARG002
        told = dict(self.sizes)
        tried = {problem: told[problem.operation] for problem in problems}
        return Answer(tried, "as told", "9.20.0", self.exact)


def told(
    forward: tuple[int, ...], data: tuple[int, ...], filters: tuple[int, ...], *, exact: bool = True
) -> Told:
    sizes = zip(Operation, (forward, data, filters), strict=True)
    return Told(find_device("rtx-3060"), (2, 12), None, tuple(sizes), exact)


def moved(trace: TraceBuilder, convolutions: Workspaces | None) -> Workload:
    read = read_trace(trace.bytes())
    blocks = pair_blocks(read)
    attribution = attribute(read, blocks)
    target = Target((8, 6), (2, 12), convolutions=convolutions)
    policies = [DropOneDnnTemporaries(), OrderConvolutionBlocks(), AddConvolutionWorkspaces()]
    before = workload_of(blocks, attribution, CPU, -1)
    after, _ = apply_policies(policies, before, Context(read, blocks, attribution, target=target))
    return after


def test_results_come_first_and_in_cudnns_order() -> None:
    after = moved(layer(), None)
    assert after.size_bytes.tolist() == [Y_BYTES, X_BYTES, W_BYTES, BIAS_BYTES]
    begins = (after.alloc_ns - after.alloc_ns[0]).tolist()
    assert begins == [0, 200_000, 200_003, 200_006]


def test_each_plan_has_its_workspace_after_its_result() -> None:
    after = moved(layer(), told((50 * MIB, 0), (30 * MIB,), (20 * MIB, 10 * MIB, 0)))
    sizes = [Y_BYTES, 50 * MIB, X_BYTES, 30 * MIB, W_BYTES, 20 * MIB, BIAS_BYTES]
    assert after.size_bytes.tolist() == sizes
    workspaces = after.category == Category.WORKSPACE
    assert workspaces.tolist() == [False, True, False, True, False, True, False]
    assert (after.free_ns == after.alloc_ns).tolist() == workspaces.tolist()
    assert [after.choices[number] for number in after.choice[workspaces]] == [
        (50 * MIB, 0),
        (30 * MIB,),
        (20 * MIB, 10 * MIB, 0),
    ]


def test_a_plan_without_workspace_adds_nothing() -> None:
    after = moved(layer(), told((0, 50 * MIB), (), (0,)))
    assert len(after) == 4
    assert after.choices == ()


def test_benchmark_times_all_plans_at_the_first_use() -> None:
    flags = {"flags": ("True", "False", "True", "True")}
    after = moved(layer(**flags), told((10 * MIB, 50 * MIB), (0, 40 * MIB), (0,)))
    workspaces = after.select(after.category == Category.WORKSPACE)
    assert workspaces.size_bytes.tolist() == [50 * MIB, 10 * MIB, 40 * MIB]
    assert workspaces.choices[int(workspaces.choice[0])] == (50 * MIB, 10 * MIB, 0)


def test_a_gradient_that_lies_otherwise_is_copied_while_the_operator_runs() -> None:
    expanded = Given(dy=Y, strides=[[0, 0, 0, 0], contiguous(X), contiguous(W)])
    trace = layer()
    for event in trace.events:
        if event["name"] == expanded.name:
            event["args"]["Input Strides"] = expanded.args()["Input Strides"]
    after = moved(trace, None)
    assert after.size_bytes.tolist() == [Y_BYTES, Y_BYTES, X_BYTES, W_BYTES, BIAS_BYTES]
    assert after.alloc_ns[1] < after.alloc_ns[2] < after.alloc_ns[4] < after.free_ns[1] < NEVER


def test_the_replay_takes_the_plan_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = layer().annotation("Optimizer.step#SGD.step", 470, 480)
    observed: Observation = observe(trace.bytes())
    workspaces = told((64 * MIB, 32 * MIB, 0), (0,), (0,))
    monkeypatch.setattr("xmem.estimation.move.workspaces_for", lambda *_: workspaces)
    requests = move(observed, ask(gpu="rtx-3060", torch_version="2.12")).requests
    assert (requests.kind == RequestKind.ALLOC).sum() == 5
    assert replay(requests).peak_requested.bytes == Y_BYTES + 64 * MIB
    near = replay(requests, capacity_bytes=60 * MIB)
    assert near.oom is None
    assert near.peak_requested.bytes == Y_BYTES + 32 * MIB


@pytest.mark.parametrize("exact", [True, False])
def test_plans_of_another_cudnn_widen_the_interval(monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    """Of segments: results in 20 MiB, the workspace tried first in 32 MiB; others need none or 64 MiB."""
    trace = layer().annotation("Optimizer.step#SGD.step", 470, 480)
    workspaces = told((32 * MIB, 64 * MIB, 0), (0,), (0,), exact=exact)
    monkeypatch.setattr("xmem.estimation.move.workspaces_for", lambda *_: workspaces)
    monkeypatch.setattr(
        "xmem.estimation.calibration.shipped", lambda: {"cpu": {"convolutional": Residuals((0.0,) * 9)}}
    )
    found = estimate(trace.bytes(), gpu="rtx-3060", torch_version="2.12", confidence=0.8)
    said, interval = found.convolution_workspaces, found.interval
    assert said is not None
    assert interval is not None
    below, above = (0, 0) if exact else (32 * MIB, 32 * MIB)
    assert said.peak_reserved_least_bytes == found.peak_reserved_bytes - below
    assert said.peak_reserved_most_bytes == found.peak_reserved_bytes + above
    assert interval.low_bytes == found.device_peak_bytes - below
    assert interval.high_bytes == found.device_peak_bytes + above
    assert ("leaves open" in interval.basis) is not exact
