"""What-ifs against captures of the script with the change made: the same job, captured with and without."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import operator
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nightly import most_nightly
from xmem.capture import capture
from xmem.errors import TraceError
from xmem.estimation.analysis import Stages
from xmem.estimation.observation import Observation, observe
from xmem.estimation.pipeline import run_stages
from xmem.trace.attribution import Phase
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


RNG_STATE_BYTES = 5056
"""Of the CPU's generator, which a checkpoint keeps; on a machine with a GPU it is on the host."""


def stages_of(observed: Observation) -> Stages:
    """On the CPU, operators of an optimizer turn Python numbers into tensors of 8 and 4 bytes, which CUDA
    leaves on the host, as it does the states of generators."""
    workload, operators = observed.workload, observed.recorded.operators
    converts = operators.rows_named({"aten::empty_strided"})[workload.operator]
    number = (workload.size_bytes == 8) | ((workload.size_bytes == 4) & converts)
    kept = ~(number & (workload.phase == Phase.OPTIMIZER_STEP)) & (workload.size_bytes != RNG_STATE_BYTES)
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


@pytest.mark.parametrize(("model", "optimizer"), most_nightly(OPTIMIZERS))
def test_another_optimizer_makes_the_same_requests(model: str, optimizer: str, captured: Captured) -> None:
    name, _, implementation = optimizer.partition(":")
    changed = captured(model, "--optimizer", name, "--implementation", implementation)
    same_requests(captured(model).what_if(f"optimizer={optimizer}"), changed)


@pytest.mark.parametrize("model", most_nightly(["transformer", "cnn"]))
@pytest.mark.parametrize(
    ("change", "arguments"),
    most_nightly(
        [
            ("accumulate=3", ["--accumulate", "3"]),
            ("zero_grad=before_backward", ["--zero-grad", "before_backward"]),
            ("zero_grad=after_step", ["--zero-grad", "after_step"]),
            ("set_to_none=false", ["--keep-gradients"]),
        ],
    ),
)
def test_another_loop_makes_the_same_requests(
    model: str, change: str, arguments: list[str], captured: Captured
) -> None:
    same_requests(captured(model).what_if(change), captured(model, *arguments))


@pytest.mark.parametrize("model", most_nightly(["transformer", "cnn"]))
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


def line_of(text: str) -> str:
    """``job.py:LINE`` of the line of the job that holds a text."""
    lines = JOB.read_text().splitlines()
    return f"job.py:{1 + next(number for number, line in enumerate(lines) if text in line)}"


def frees_sorted(sequence: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Requests in runs of one kind; the order of frees within one changes nothing."""
    return [sorted(run) for _, run in itertools.groupby(sequence, key=operator.itemgetter(0))]


@pytest.mark.parametrize(
    ("loss", "release"),
    most_nightly([("cross_entropy", "before_backward"), ("squares", "after_backward")]),
)
def test_a_tensor_let_go_makes_the_same_requests(loss: str, release: str, captured: Captured) -> None:
    kept = captured("transformer", "--keep-outputs", "--loss", loss)
    let_go = captured("transformer", "--keep-outputs", "--loss", loss, "--release", release)
    assert run_stages(kept).requests.time_ns.size < run_stages(let_go).requests.time_ns.size
    change = f"release={line_of('self.head(self.hidden(tokens))')}"
    prediction, truth = run_stages(kept.what_if(change)), stages_of(let_go)
    assert frees_sorted(requests(prediction)) == frees_sorted(requests(truth))
    assert prediction.unlimited.peak_reserved.bytes == truth.unlimited.peak_reserved.bytes


@pytest.mark.parametrize(
    ("model", "modules", "paths"),
    most_nightly(
        [("mlp", "Sequential.?", "?"), ("cnn", "Sequential.?", "?"), ("cnn", "Sequential.[01]", "0,1")]
    ),
)
def test_checkpointing_has_the_same_peaks(model: str, modules: str, paths: str, captured: Captured) -> None:
    prediction = run_stages(captured(model).what_if(f"checkpoint={modules}")).unlimited
    truth = stages_of(captured(model, "--checkpoint", paths)).unlimited
    assert prediction.peak_allocated.bytes == truth.peak_allocated.bytes
    assert prediction.peak_reserved.bytes == truth.peak_reserved.bytes


@pytest.mark.parametrize("paths", most_nightly(["blocks.?", "blocks"]))
def test_checkpointing_of_attention_is_close(paths: str, captured: Captured) -> None:
    """The policy for attention on the CPU keeps results of a checkpointed forward pass, which CUDA frees; on
    the phantom GPU the peaks of these pairs were equal."""
    changed = captured("transformer").what_if(f"checkpoint=Transformer.{paths}")
    prediction = run_stages(changed).unlimited.peak_allocated.bytes
    truth = stages_of(captured("transformer", "--checkpoint", paths)).unlimited.peak_allocated.bytes
    assert truth * 0.98 < prediction <= truth


def test_a_loss_in_chunks_has_the_same_peaks(captured: Captured) -> None:
    prediction = run_stages(captured("transformer").what_if("chunk_loss=4")).unlimited
    truth = stages_of(captured("transformer", "--chunk-loss", "4")).unlimited
    scalars = truth.peak_allocated.bytes - prediction.peak_allocated.bytes
    assert 0 <= scalars <= 4 * 512
    assert prediction.peak_reserved.bytes == truth.peak_reserved.bytes


def same_requests(predicted: Observation, changed: Observation) -> None:
    """Request for request, and so the same peaks."""
    prediction, truth = run_stages(predicted), stages_of(changed)
    assert requests(prediction) == requests(truth)
    assert prediction.unlimited.peak_reserved.bytes == truth.unlimited.peak_reserved.bytes
    assert prediction.unlimited.peak_allocated.bytes == truth.unlimited.peak_allocated.bytes


@pytest.mark.parametrize(
    ("model", "precision", "tolerance"),
    most_nightly(
        [
            ("mlp", "bf16", 0.001),
            ("mlp", "bf16-autocast", 0.015),
            ("transformer", "bf16", 0.001),
            ("cnn", "bf16", 0.005),  # workspaces of convolutions stay those of float32
            # the CPU's log_softmax copies its half input to float32, which CUDA's does not
            ("transformer", "bf16-autocast", 0.025),
            ("cnn", "bf16-autocast", 0.025),
        ],
    ),
)
def test_half_precision_is_close(model: str, precision: str, tolerance: float, captured: Captured) -> None:
    changed = stages_of(captured(model, "--precision", precision)).unlimited
    predicted = run_stages(captured(model).what_if(f"precision={precision}")).unlimited
    assert predicted.peak_allocated.bytes == pytest.approx(changed.peak_allocated.bytes, rel=tolerance)
    assert abs(predicted.peak_reserved.bytes - changed.peak_reserved.bytes) <= 2 << 20  # one small segment


def test_half_precision_is_refused_where_there_is_some(captured: Captured) -> None:
    observed = captured("mlp", "--precision", "bf16-autocast")
    with pytest.raises(TraceError, match="already runs in half precision"):
        run_stages(observed.what_if(parse_whatif("precision=bf16")))
