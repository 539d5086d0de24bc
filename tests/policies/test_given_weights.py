"""Weights that operators were given: one pass through a model is told from the next, and from a layer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import xmem
from policies.applied import recorded
from xmem.orchestration.lifetimes.given_weights import given_weights, periods
from xmem.testing.trace_builder import TraceBuilder

BATCH, WIDTH = 4, 1024
FLOAT = 4


class Script:
    """A trace of operators that run one after the other, each with a result."""

    def __init__(self) -> None:
        self.trace = TraceBuilder()
        self._clock = 0

    def operator(self, name: str, *dims: list[int], result: int = 0) -> Script:
        """Run an operator on tensors of these shapes, with a result of so many floats."""
        begin = self._clock
        types = ["float"] * len(dims)
        self.trace.operator(name, begin, begin + 9, input_dims=list(dims), input_types=types)
        if result:
            self.trace.alloc(0x1000 + begin, result * FLOAT, begin + 5)
        self._clock += 10
        return self

    def linear(self, inputs: int, outputs: int) -> Script:
        """Run a linear layer."""
        dims = [BATCH, inputs], [outputs, inputs], [outputs]
        return self.operator("aten::linear", *dims, result=BATCH * outputs)


def floats(*sizes: int) -> list[int]:
    return sorted(size * FLOAT for size in sizes)


@pytest.mark.parametrize("passes", [1, 2, 7])
def test_a_model_that_runs_again_on_the_same_input_has_its_weights_once(passes: int) -> None:
    script = Script()
    for _ in range(passes):
        script.linear(WIDTH, 512).linear(512, 10)
    found = given_weights(recorded(script.trace))
    assert sorted(found.sizes) == floats(512 * WIDTH, 512, 10 * 512, 10)
    assert found.passes == passes


def test_layers_that_take_what_the_one_before_made_are_layers() -> None:
    script = Script()
    for _ in range(6):
        script.linear(WIDTH, 512).linear(512, WIDTH)
    found = given_weights(recorded(script.trace))
    assert sorted(found.sizes) == sorted(floats(512 * WIDTH, 512, WIDTH * 512, WIDTH) * 6)
    assert found.passes == 1


def test_passes_over_inputs_of_other_lengths_are_passes() -> None:
    script = Script()
    for tokens in (7, 1, 1):  # a prompt, and two tokens that follow it
        script.operator("aten::embedding", [50, 8], [1, tokens], result=tokens * 8)
        for _ in range(3):
            script.operator("aten::linear", [1, tokens, 8], [8, 8], [8], result=tokens * 8)
    found = given_weights(recorded(script.trace))
    assert sorted(found.sizes) == floats(50 * 8, *(64, 8) * 3)
    assert found.passes == 3


def test_tables_of_one_size_are_not_passes() -> None:
    script = Script()
    for _ in range(4):
        script.operator("aten::embedding", [50, 8], [BATCH], result=BATCH * 8)
    assert sorted(given_weights(recorded(script.trace)).sizes) == floats(*(50 * 8,) * 4)


def test_marks_of_the_profiler_hold_passes_apart_that_differ() -> None:
    script = Script()
    for number, layers in enumerate((1, 2)):
        script.trace.annotation(f"ProfilerStep#{number}", number * 100, number * 100 + 99)
        script._clock = number * 100
        for _ in range(layers):
            script.linear(WIDTH, WIDTH)
    assert len(given_weights(recorded(script.trace)).sizes) == 4


def test_what_autocast_calls_once_more_is_one_operator() -> None:
    trace = TraceBuilder()
    dims = [[BATCH, 64], [32, 64], [32]]
    trace.operator("aten::linear", 0, 20, input_dims=dims, input_types=["float"] * 3)
    trace.operator("aten::linear", 5, 15, input_dims=dims, input_types=["c10::Half"] * 3)
    trace.operator(
        "aten::addmm", 7, 12, input_dims=[[32], [BATCH, 64], [64, 32]], input_types=["c10::Half"] * 3
    )
    assert sorted(given_weights(recorded(trace.alloc(0x1, 512, 3))).sizes) == floats(32 * 64, 32)


def test_a_last_layer_with_the_shape_of_the_embedding_may_be_the_embedding() -> None:
    script = (
        Script().operator("aten::embedding", [50, 8], [BATCH], result=BATCH * 8).linear(8, 8).linear(8, 50)
    )
    assert given_weights(recorded(script.trace)).tied_bytes == 50 * 8 * FLOAT
    script.linear(50, 3)
    assert given_weights(recorded(script.trace)).tied_bytes == 0


def test_the_answer_says_how_many_passes_it_saw() -> None:
    script = Script()
    for _ in range(3):
        script.linear(WIDTH, 512).linear(512, 10)
    estimate = xmem.estimate(script.trace.bytes(), gpu="rtx-3090")
    assert any("in one of 3 equal passes" in each for each in estimate.assumptions)


@given(st.lists(st.integers(0, 1), max_size=30))
def test_a_period_is_what_the_sequence_repeats_itself_after(values: list[int]) -> None:
    expected = [period for period in range(1, len(values)) if values[period:] == values[:-period]]
    assert list(periods(values)) == expected
