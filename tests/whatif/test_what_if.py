"""What-ifs on a run computed by hand; W, B: weight and bias, X: batch, Y: output of the layer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import xmem
from whatif.sample import BATCH, BIAS, KIB, MIB, OUTPUT, WEIGHT, linear
from xmem.errors import ConfigError, TraceError
from xmem.estimation.observation import observe
from xmem.estimation.pipeline import run_stages
from xmem.scaling import Sample, fit
from xmem.simulation.replay import RequestKind
from xmem.testing.trace_builder import TraceBuilder
from xmem.whatif import parse_whatif

PARAMETERS = WEIGHT + BIAS
AT_BACKWARD = PARAMETERS + BATCH + OUTPUT + PARAMETERS
"""The peak of the run as recorded: X, Y and the gradients beside the parameters."""


def requested(*changes: str, iterations: int = 2) -> int:
    """The most bytes that blocks asked for at once."""
    return xmem.estimate(linear(iterations=iterations).bytes(), what_if=changes).peak_requested_bytes


def requests(*changes: str, iterations: int = 2) -> list[tuple[str, int]]:
    """Kind and size of all requests, in order."""
    stages = run_stages(observe(linear(iterations=iterations).bytes()).what_if(*changes))
    kinds = {int(RequestKind.ALLOC): "alloc", int(RequestKind.FREE): "free"}
    return [
        (kinds[int(kind)], int(stages.workload.size_bytes[block]))
        for kind, block in zip(stages.requests.kind, stages.requests.block, strict=True)
    ]


def test_the_run_as_recorded() -> None:
    assert requested() == AT_BACKWARD


@pytest.mark.parametrize(
    ("optimizer", "state", "temporaries"),
    [
        ("sgd", 0, 0),
        ("sgd+momentum", PARAMETERS, 0),
        ("sgd+weight_decay", 0, PARAMETERS),
        ("sgd+weight_decay:for-loop", 0, WEIGHT),
        ("sgd+weight_decay:fused", 0, 0),
        ("adam", 2 * PARAMETERS, PARAMETERS),
        ("adam:for-loop", 2 * PARAMETERS, 2 * WEIGHT),
        # a step counter each
        ("adamw:fused", 2 * PARAMETERS + 2 * 4, 0),
        ("adamw+amsgrad", 3 * PARAMETERS, PARAMETERS),
        ("rmsprop+centered+momentum", 3 * PARAMETERS, PARAMETERS),
        ("adagrad", PARAMETERS, 2 * PARAMETERS),
        # rows and columns of the weight, the bias whole; while the weight is summed to columns, the partial
        # sums and semaphores of an A100's blocks
        ("adafactor", 3 * BIAS, 2 * BIAS + 8 * MIB + 32),
    ],
)
def test_an_optimizer_holds_its_state_and_its_temporaries(
    optimizer: str, state: int, temporaries: int
) -> None:
    at_step = PARAMETERS + BATCH + PARAMETERS + state + temporaries
    at_next_backward = AT_BACKWARD + state
    assert requested(f"optimizer={optimizer}") == max(at_step, at_next_backward)


def test_state_is_allocated_in_the_first_step_only_and_temporaries_in_each() -> None:
    added = requests("optimizer=adam")
    for request in requests():
        added.remove(request)
    first, second = added[:8], added[8:]
    state = [("alloc", WEIGHT), ("alloc", WEIGHT), ("alloc", BIAS), ("alloc", BIAS)]
    roots = [("alloc", WEIGHT), ("alloc", BIAS), ("free", BIAS), ("free", WEIGHT)]
    assert sorted(first) == sorted(state + roots)
    assert sorted(second) == sorted(roots)


def test_the_for_loop_holds_the_last_denominator_while_it_makes_the_next() -> None:
    sequence = requests("optimizer=adam:for-loop", iterations=1)
    in_step = sequence[sequence.index(("free", OUTPUT)) + 1 :]
    assert in_step == [
        *[("alloc", WEIGHT), ("alloc", WEIGHT), ("alloc", BIAS), ("alloc", BIAS)],
        *[("alloc", WEIGHT), ("alloc", WEIGHT), ("free", WEIGHT)],
        *[("alloc", BIAS), ("alloc", BIAS), ("free", BIAS), ("free", WEIGHT), ("free", BIAS)],
    ]


def test_gradients_kept_until_the_backward_pass_add_to_it() -> None:
    # the gradients of the last step, W + B, are there until Y is
    assert requested("zero_grad=before_backward") == AT_BACKWARD
    freed = requests("zero_grad=before_backward")
    assert freed.index(("alloc", OUTPUT), 8) < freed.index(("free", WEIGHT))
    assert requests("zero_grad=after_step").index(("free", WEIGHT)) < freed.index(("free", WEIGHT))


def test_gradients_that_are_not_let_go_are_added_to() -> None:
    # while the second backward pass adds to the gradients, both are there
    assert requested("set_to_none=false") == AT_BACKWARD + PARAMETERS
    assert requests("set_to_none=false").count(("free", WEIGHT)) == 1
    with pytest.raises(TraceError, match="put set_to_none=true before"):
        requested("set_to_none=false", "zero_grad=after_step")


def test_both_ways_of_clearing_undo_each_other() -> None:
    assert requests("set_to_none=false", "set_to_none=true", "zero_grad=before_forward") == requests(
        "zero_grad=before_forward"
    )


def test_micro_batches_are_repeated_and_their_gradients_added() -> None:
    assert requested("accumulate=1") == AT_BACKWARD
    assert requested("accumulate=3") == AT_BACKWARD + PARAMETERS
    sequence = requests("accumulate=3")
    assert sequence.count(("alloc", OUTPUT)) == 6
    # six gradients came; the first of the first step was let go by zero_grad, the other four by addition
    assert (sequence.count(("alloc", WEIGHT)), sequence.count(("free", WEIGHT))) == (1 + 6, 1 + 4)
    # two batches at most at any one time: the old one ends when the new one has arrived
    assert max(_alive(sequence, BATCH)) == 2


def _alive(sequence: Sequence[tuple[str, int]], size: int) -> list[int]:
    alive, counts = 0, []
    for kind, of in sequence:
        alive += (of == size) * (1 if kind == "alloc" else -1)
        counts.append(alive)
    return counts


def test_one_iteration_is_not_enough_to_accumulate() -> None:
    with pytest.raises(TraceError, match="capture at least two"):
        requested("accumulate=2", iterations=1)


def test_pure_half_precision_takes_half() -> None:
    assert requested("precision=bf16") == AT_BACKWARD // 2


def test_under_autocast_parameters_and_gradients_stay_and_results_halve() -> None:
    # backward: casts of the weight (not saved for the first layer), of the batch, Y and dW, dB in half
    peak = 2 * PARAMETERS + BATCH + BATCH // 2 + OUTPUT // 2
    assert requested("precision=bf16-autocast") in range(peak, peak + PARAMETERS)
    assert ("alloc", OUTPUT // 2) in requests("precision=bf16-autocast")
    assert ("alloc", OUTPUT) not in requests("precision=bf16-autocast")


def test_several_compose_in_the_order_given() -> None:
    # fused Adam on half of everything, gradients added to
    both = requested("precision=bf16", "set_to_none=false", "optimizer=adamw:fused")
    assert both == (AT_BACKWARD + PARAMETERS) // 2 + PARAMETERS + 2 * 4
    accumulated = requested("accumulate=2", "optimizer=adamw:fused")
    assert accumulated == requested("optimizer=adamw:fused", "accumulate=2")


def test_the_order_matters_only_where_it_says_so() -> None:
    for change in ("optimizer=adamw:fused", "set_to_none=false", "accumulate=3", "zero_grad=before_backward"):
        assert requested(change, "precision=bf16") == requested("precision=bf16", change)
    assert requested("precision=bf16-autocast", "accumulate=2") > requested("precision=bf16-autocast")
    with pytest.raises(ConfigError, match="autocast first, then accumulate"):
        requested("accumulate=2", "precision=bf16-autocast")


def test_a_point_of_a_fitted_model_is_a_run_like_others() -> None:
    samples = [Sample({"batch": size}, observe(linear(batch_size=size).bytes())) for size in (1, 2)]
    changes = ["accumulate=2", "optimizer=adam", "zero_grad=before_backward"]
    foreseen = run_stages(fit(samples).at(batch=5).what_if(*changes)).unlimited
    captured = run_stages(observe(linear(batch_size=5).bytes()).what_if(*changes)).unlimited
    assert foreseen.peak_requested.bytes == captured.peak_requested.bytes
    assert foreseen.peak_reserved.bytes == captured.peak_reserved.bytes


def test_the_estimate_lists_them() -> None:
    estimate = xmem.estimate(linear().bytes(), what_if=["accumulate=2", " optimizer = sgd "])
    assert estimate.to_json()["what_if"] == ("accumulate=2", "optimizer=sgd")
    assert xmem.estimate(linear().bytes()).what_if == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer=lion", "one of sgd, adam, adamw"),
        (
            "optimizer=adam+nesterov",
            "of adam in --what-if optimizer=adam+nesterov; use one of amsgrad, weight_decay",
        ),
        ("optimizer=sgd+nesterov", "sets nesterov without momentum; use sgd+momentum+nesterov"),
        ("optimizer=rmsprop:fused", "--what-if optimizer=rmsprop:fused; use one of foreach, for-loop"),
        ("zero_grad=never", "one of iteration_start, before_forward"),
        ("set_to_none=maybe", "set_to_none=true or set_to_none=false"),
        ("accumulate=0", "a number of micro-batches"),
        ("precision=int8", "one of bf16, fp16, bf16-autocast"),
        ("alloc_conf=expandable_segments:True", "--alloc-conf expandable_segments:True"),
        ("gpu=h100", "--gpu h100"),
        ("checkpoint=", "the path of a module"),
        ("release=train.py", "a file and a line"),
        ("chunk_loss=0", "a number of chunks"),
        ("batch=4", "one of optimizer=..., zero_grad=..."),
        ("optimizer", "one of optimizer=..., zero_grad=..."),
    ],
)
def test_what_is_not_known_is_refused_with_what_is(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_whatif(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "change",
    ["optimizer=adam", "zero_grad=after_step", "set_to_none=false", "accumulate=2", "precision=bf16"],
)
def test_a_trace_without_names_is_refused(change: str) -> None:
    with pytest.raises(TraceError, match="does not name parameters"):
        xmem.estimate(linear(names=False).bytes(), what_if=[change])


@pytest.mark.parametrize("column", ["dtype", "shape", "group"])
def test_an_early_capture_without_a_column_is_refused(column: str) -> None:
    trace = linear()
    assert trace.metadata is not None
    trace.metadata["tensors"][column] = None if column != "dtype" else []
    with pytest.raises(TraceError, match="does not hold dtypes, shapes and parameter groups"):
        xmem.estimate(trace.bytes(), what_if=["optimizer=adam"])


def test_several_optimizers_are_refused() -> None:
    trace: TraceBuilder = linear()
    trace.with_metadata(optimizers=[{"name": "Adam"}, {"name": "SGD"}])
    with pytest.raises(TraceError, match=r"several optimizers \(Adam, SGD\)"):
        xmem.estimate(trace.bytes(), what_if=["optimizer=adam"])


def test_a_closure_is_refused() -> None:
    trace = linear()
    trace.operator("autograd::engine::evaluate_function: MulBackward0", 172, 173)
    with pytest.raises(TraceError, match="a closure"):
        xmem.estimate(trace.bytes(), what_if=["optimizer=adam"])


def test_a_gradient_inside_of_a_larger_block_is_refused() -> None:
    trace = linear()
    assert trace.metadata is not None
    trace.metadata["tensors"]["size_bytes"][3] = 64 * MIB + KIB
    with pytest.raises(TraceError, match=r"part of a larger block"):
        xmem.estimate(trace.bytes(), what_if=["optimizer=adam"])
