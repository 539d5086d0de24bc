"""What-ifs against captures of the script with the change made: the same job, captured with and without."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from xmem.attribution import Phase
from xmem.capture import capture
from xmem.errors import TraceError
from xmem.observation import Observation, observe
from xmem.pipeline import Stages, run_stages
from xmem.whatif import parse_whatif

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.slow,
]

JOB = Path(__file__).with_name("job.py")

Captured = Callable[..., Observation]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """``captured("mlp", "--optimizer", "adam")``: the job's trace, made at the first call."""

    @functools.cache
    def make(model: str, *arguments: str) -> Observation:
        path = tmp_path_factory.mktemp("job") / "trace.json.gz"
        capture([sys.executable, str(JOB), "--model", model, *arguments], path, timeout_s=120)
        return observe(path)

    return make


def stages_of(observed: Observation) -> Stages:
    """On the CPU, operators of an optimizer turn Python numbers into tensors of 8 and 4 bytes, which CUDA
    leaves on the host."""
    workload, operators = observed.workload, observed.recorded.operators
    converts = operators.rows_named({"aten::empty_strided"})[workload.operator]
    number = (workload.size_bytes == 8) | ((workload.size_bytes == 4) & converts)
    kept = ~(number & (workload.phase == Phase.OPTIMIZER_STEP))
    return run_stages(replace(observed, workload=workload.select(kept)))


def requests(stages: Stages) -> list[tuple[int, int]]:
    """Kind and size of every request of the run."""
    sizes = stages.workload.size_bytes[stages.requests.block]
    return list(zip(stages.requests.kind.tolist(), sizes.tolist(), strict=True))


OPTIMIZERS = [
    ("mlp", "adam:foreach"),
    ("mlp", "sgd+nesterov+momentum+weight_decay:for-loop"),
    ("mlp", "adafactor:for-loop"),
    ("mlp", "adagrad+weight_decay:foreach"),
    ("cnn", "adamw+amsgrad:for-loop"),
    ("cnn", "rmsprop+centered+weight_decay:foreach"),
    ("transformer", "adamw:fused"),
    ("transformer", "adafactor:foreach"),
]


@pytest.mark.parametrize(("model", "optimizer"), OPTIMIZERS)
def test_another_optimizer_makes_the_same_requests(model: str, optimizer: str, captured: Captured) -> None:
    name, _, implementation = optimizer.partition(":")
    changed = captured(model, "--optimizer", name, "--implementation", implementation)
    same_requests(captured(model).what_if(f"optimizer={optimizer}"), changed)


@pytest.mark.parametrize("model", ["transformer", "cnn"])
@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        ("zero_grad=before_backward", ["--zero-grad", "before_backward"]),
        ("zero_grad=after_step", ["--zero-grad", "after_step"]),
        ("set_to_none=false", ["--keep-gradients"]),
        ("accumulate=3", ["--accumulate", "3"]),
    ],
)
def test_another_loop_makes_the_same_requests(
    model: str, change: str, arguments: list[str], captured: Captured
) -> None:
    same_requests(captured(model).what_if(change), captured(model, *arguments))


@pytest.mark.parametrize("model", ["transformer", "cnn"])
def test_gradients_are_let_go_again(model: str, captured: Captured) -> None:
    same_requests(captured(model, "--keep-gradients").what_if("set_to_none=true"), captured(model))


def test_changes_compose(captured: Captured) -> None:
    changed = captured(
        *("transformer", "--optimizer", "adam", "--implementation", "foreach"),
        *("--zero-grad", "before_backward", "--accumulate", "2"),
    )
    changes = ["zero_grad=before_backward", "accumulate=2", "optimizer=adam:foreach"]
    same_requests(captured("transformer").what_if(*changes), changed)
    same_requests(captured("transformer").what_if(*reversed(changes)), changed)


def same_requests(predicted: Observation, changed: Observation) -> None:
    """Request for request, and so the same peaks."""
    prediction, truth = run_stages(predicted), stages_of(changed)
    assert requests(prediction) == requests(truth)
    assert prediction.unlimited.peak_reserved.bytes == truth.unlimited.peak_reserved.bytes
    assert prediction.unlimited.peak_allocated.bytes == truth.unlimited.peak_allocated.bytes


@pytest.mark.parametrize(
    ("model", "precision", "tolerance"),
    [
        ("mlp", "bf16", 0.001),
        ("transformer", "bf16", 0.001),
        ("cnn", "bf16", 0.005),  # workspaces of convolutions stay those of float32
        ("mlp", "bf16-autocast", 0.015),
        # the CPU's log_softmax copies its half input to float32, which CUDA's does not
        ("transformer", "bf16-autocast", 0.025),
        ("cnn", "bf16-autocast", 0.025),
    ],
)
def test_half_precision_is_close(model: str, precision: str, tolerance: float, captured: Captured) -> None:
    changed = stages_of(captured(model, "--precision", precision)).unlimited
    predicted = run_stages(captured(model).what_if(f"precision={precision}")).unlimited
    assert predicted.peak_allocated.bytes == pytest.approx(changed.peak_allocated.bytes, rel=tolerance)
    assert abs(predicted.peak_reserved.bytes - changed.peak_reserved.bytes) <= 2 << 20  # one small segment


def test_half_precision_is_refused_where_there_is_some(captured: Captured) -> None:
    observed = captured("mlp", "--precision", "bf16-autocast")
    with pytest.raises(TraceError, match="in half precision already"):
        run_stages(observed.what_if(parse_whatif("precision=bf16")))
