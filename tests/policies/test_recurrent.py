"""Recurrent layers: sizes worked out by hand, and a call of an LSTM before and after."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.applied import AMPERE, applied, applied_at, sequence
from xmem.devices.gpus import find_device
from xmem.estimation.assumptions import assumptions
from xmem.estimation.pipeline import run_stages
from xmem.estimation.question import AS_RECORDED
from xmem.orchestration import RunSettings
from xmem.orchestration.recurrent.cudnn_layers import ReplaceRecurrentLayers
from xmem.orchestration.recurrent.recurrent_spaces import (
    RecurrentCall,
    dropout_state_bytes,
    reserve_bytes,
    work_bytes,
)
from xmem.run.recorded import Recorded
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.attribution import Category, attribute
from xmem.trace.blocks import pair_blocks
from xmem.trace.trace import read_trace

MIB = 1 << 20
HOPPER = (9, 0)

LSTM = RecurrentCall(
    gates=4,
    item_bytes=4,
    steps=32 * 40,
    longest=32,
    batch=40,
    input_width=128,
    hidden=256,
    projection=0,
    layers=2,
    directions=1,
    biases=True,
    training=True,
    drops=True,
    by_sequence=False,
    packed=False,
    has_persistent=True,
    weights_bytes=(),
)
GRU = replace(LSTM, gates=3, layers=1, directions=2, drops=False)


def test_an_lstm_reserves_gates_and_cells_the_output_between_layers_and_a_bit_of_dropout_for_each() -> None:
    states = 1280 * 256 * 4
    assert reserve_bytes(LSTM) == 2 * 5 * states + states + 256 + 1280 * 256 // 8
    assert reserve_bytes(replace(LSTM, drops=False)) == 11 * states + 256


def test_a_gru_reserves_twice_its_gates_in_each_direction() -> None:
    assert reserve_bytes(GRU) == 2 * 6 * 1280 * 256 * 4 + 256


def test_a_plain_cell_in_half_precision_reserves_its_state() -> None:
    plain = replace(LSTM, gates=1, item_bytes=2, layers=1, drops=False)
    assert reserve_bytes(plain) == 1280 * 256 * 2 + 256


def test_a_projected_lstm_reserves_what_goes_into_the_projection_and_comes_out() -> None:
    projected = replace(LSTM, layers=1, drops=False, projection=64)
    assert reserve_bytes(projected) == 1280 * (5 * 256 + 256 + 64) * 4 + 256


def test_the_block_of_weights_has_two_biases_a_gate_even_where_the_layer_has_none() -> None:
    first, second = 1024 * (128 + 256), 1024 * (256 + 256)
    assert LSTM.weight_space_bytes == (first + second + 2 * 2 * 1024) * 4
    assert replace(LSTM, biases=False).weight_space_bytes == LSTM.weight_space_bytes
    projected = replace(LSTM, layers=1, projection=64)
    assert projected.weight_space_bytes == (1024 * (128 + 64) + 64 * 256 + 2 * 1024) * 4


def test_the_workspace_is_what_cudnn_answered() -> None:
    assert work_bytes(LSTM, HOPPER) == 29_786_688
    assert work_bytes(GRU, HOPPER) == work_bytes(GRU, AMPERE.compute_capability) == 36_094_528
    one_layer = replace(LSTM, layers=1, drops=False)
    assert work_bytes(one_layer, HOPPER) == 17_580_608
    assert work_bytes(replace(one_layer, input_width=512), HOPPER) == 23_781_952  # the backward's is larger
    plain = replace(one_layer, gates=1, training=False, has_persistent=False)
    assert work_bytes(plain, HOPPER) == 12_182_080  # without a backward


def test_layers_in_one_direction_take_no_8_mib_each_on_ampere() -> None:
    assert work_bytes(LSTM, AMPERE.compute_capability) == work_bytes(LSTM, HOPPER) - 2 * 8 * MIB == 13_009_472


def test_the_backward_of_long_sequences_takes_more_steps_at_a_time_from_ampere_on() -> None:
    long = replace(TAGGER, input_width=512, hidden=512, directions=1, drops=False)
    assert work_bytes(long, HOPPER) == 117_703_424
    assert work_bytes(long, (7, 5)) == 116_654_848


def test_small_states_run_in_kernels_that_stay_on_the_gpu() -> None:
    assert work_bytes(replace(LSTM, hidden=128, drops=False), HOPPER) == 32_571_968
    assert work_bytes(replace(GRU, hidden=128), HOPPER) == 34_890_304
    plain = replace(LSTM, gates=1, layers=1, drops=False, training=False)
    assert work_bytes(plain, HOPPER) == 17_465_920


def test_of_some_states_only_the_forward_does() -> None:
    between = replace(LSTM, hidden=192, layers=1, drops=False)
    assert work_bytes(between, HOPPER) == 30_917_184
    assert work_bytes(between, HOPPER, backward=True) == 15_249_984


TAGGER = replace(
    GRU,
    steps=128 * 64,
    longest=128,
    batch=64,
    input_width=128,
    hidden=256,
    layers=2,
    drops=True,
    packed=False,
)
"""Of a tagger of batches of 64 sentences of 128 words: in two directions, dropout adds no work."""


def test_the_workspace_of_two_directions_is_what_cudnn_answered() -> None:
    assert work_bytes(TAGGER, HOPPER) == work_bytes(replace(TAGGER, drops=False), HOPPER) == 151_520_000
    assert work_bytes(replace(TAGGER, training=False, drops=False), HOPPER) == 147_325_696
    assert work_bytes(TAGGER, HOPPER, before_9_8=True) == 151_520_256
    assert reserve_bytes(TAGGER) == 219_152_640


def test_packed_sequences_are_not_copied_and_have_no_padding() -> None:
    packed = replace(TAGGER, steps=10 * 128 + 54 * 100, packed=True)
    assert work_bytes(packed, HOPPER) == work_bytes(packed, HOPPER, before_9_8=True) == 110_346_496
    assert reserve_bytes(replace(packed, drops=False)) == 177_848_576
    dropped = reserve_bytes(packed) - 177_848_576
    assert dropped == 2 * 128 * 64 * 2 * 256 // 8  # a bit for padding too


def test_a_random_generator_has_six_words_a_thread_of_the_gpu() -> None:
    assert dropout_state_bytes(find_device("rtx-3060")) == 28 * 1536 * 24
    assert dropout_state_bytes(None) == 108 * 2048 * 24


# 4 steps of 2 sequences, 3 wide, 5 hidden, one layer.
def dims_of(batch: int) -> list[object]:
    states = [[1, batch, 5], [1, batch, 5]]
    return [[4, batch, 3], states, [[20, 3], [20, 5], [20], [20]], [], [], [], [], [], []]


VALUES = ["", "", "", "True", "1", "0.", "True", "False", "False"]
INPUT, RESULT, STATE = 4 * 2 * 3 * 4, 4 * 2 * 5 * 4, 2 * 5 * 4
WEIGHTS = 20 * (3 + 5 + 2) * 4
SMALL = replace(LSTM, steps=8, longest=4, batch=2, input_width=3, hidden=5, layers=1, drops=False)


def step(
    *,
    dims: list[object] | None = None,
    item: str = "float",
    dropout: str = "0.",
    layers: int = 1,
    by_sequence: str = "False",
    batch: int = 2,
) -> TraceBuilder:
    """A call with a buffer of oneDNN's that the backward uses, and a backward with two gradients."""
    values = [*VALUES[:4], str(layers), dropout, *VALUES[6:8], by_sequence]
    input_bytes, result, state = (count * batch // 2 for count in (INPUT, RESULT, STATE))
    trace = TraceBuilder()
    trace.operator(
        "aten::lstm",
        10,
        50,
        sequence_number=7,
        input_types=[item],
        input_dims=dims_of(batch) if dims is None else dims,
        concrete_inputs=values,
    )
    trace.alloc(0x100, result, 12).alloc(0x200, 5000, 14).alloc(0x300, 777, 16).free(0x300, 18)
    trace.alloc(0x400, layers * state, 20).alloc(0x500, layers * state, 22)
    trace.free(0x500, 55).free(0x400, 56)
    trace.operator("aten::relu", 60, 70, sequence_number=8)
    trace.backward("MkldnnRnnLayerBackward0", 100, 140, sequence_number=7)
    trace.alloc(0x600, 999, 102).free(0x600, 130).alloc(0x700, input_bytes, 110).alloc(0x800, 240, 112)
    trace.alloc(0x900, 400, 114).free(0x200, 141).free(0x100, 142).free(0x700, 150)
    return trace


def test_a_call_of_an_lstm_becomes_one_of_cudnn() -> None:
    after, _ = applied(ReplaceRecurrentLayers(), step())
    work, reserve = work_bytes(SMALL, AMPERE.compute_capability), reserve_bytes(SMALL)
    forward = after.select(after.alloc_ns < after.alloc_ns.min() + 50_000)
    assert forward.size_bytes.tolist() == [RESULT, STATE, STATE, work, reserve]
    assert forward.category[3] == Category.WORKSPACE
    result, hidden, cell, workspace, reserved = forward.free_ns.tolist()
    begin_ns = int(after.alloc_ns.min())
    assert [time - begin_ns for time in (cell, hidden, workspace)] == [45_000, 46_000, 40_000]
    assert [time - begin_ns for time in (reserved, result)] == [130_000, 132_000]
    backward = after.select(after.alloc_ns >= begin_ns + 50_000).size_bytes.tolist()
    assert backward == [STATE, STATE, INPUT, STATE, STATE, work, WEIGHTS, work]


def test_the_gradients_of_all_weights_are_one_block_that_lives_as_long_as_they_do() -> None:
    after, _ = applied(ReplaceRecurrentLayers(), step())
    gradients = after.select(after.size_bytes == WEIGHTS)
    temporary = after.select(after.size_bytes == work_bytes(SMALL, AMPERE.compute_capability))
    assert len(gradients) == 1
    assert gradients.free_ns[0] > temporary.free_ns.max()


def test_dropout_between_layers_takes_a_random_generator_for_good() -> None:
    two = [dims_of(2)[0], [[2, 2, 5], [2, 2, 5]], *dims_of(2)[2:]]
    after, _ = applied(ReplaceRecurrentLayers(), step(dims=two, dropout="0.5", layers=2))
    generators = after.select(after.size_bytes == dropout_state_bytes(AMPERE.device))
    assert len(generators) == 1
    assert generators.free_ns[0] == after.free_ns.max()


def test_an_input_by_sequence_lives_until_the_backward_and_is_copied_for_each_call_of_cudnn() -> None:
    trace = step(by_sequence="True").alloc(0xA00, INPUT, 2).free(0xA00, 58)
    after, _ = applied(ReplaceRecurrentLayers(), trace)
    inputs = after.select(after.size_bytes == INPUT)
    assert len(inputs) == 5  # itself, its gradient, and copies in the forward and for either backward
    times = inputs.free_ns - after.alloc_ns.min()
    assert times[0] == 138_000
    assert times[1] == 48_000


def test_at_a_point_of_a_fitted_model_it_is_the_call_that_a_run_there_makes() -> None:
    fitted, _ = applied_at(ReplaceRecurrentLayers(), lambda batch: step(batch=batch), 24)
    captured, _ = applied(ReplaceRecurrentLayers(), step(batch=24))
    assert sequence(fitted) == sequence(captured)
    assert reserve_bytes(replace(SMALL, steps=4 * 24, batch=24)) in fitted.size_bytes


@pytest.mark.parametrize("item", ["c10::BFloat16", "long"])
def test_other_element_types_are_left_alone(item: str) -> None:
    _, change = applied(ReplaceRecurrentLayers(), step(item=item))
    assert change.blocks_changed == 0


def test_nothing_is_replaced_where_shapes_are_not_recorded_or_cudnn_is_off() -> None:
    _, without_shapes = applied(ReplaceRecurrentLayers(), step(dims=[]))
    off = replace(AMPERE, settings=RunSettings(cudnn_enabled=False))
    _, without_cudnn = applied(ReplaceRecurrentLayers(), step(), target=off)
    assert (without_shapes.blocks_changed, without_cudnn.blocks_changed) == (0, 0)


def test_what_autocast_casts_is_one_call_of_cudnn_in_bfloat16_too() -> None:
    four = dims_of(4)  # of half as many bytes as the blocks of two
    trace = step(item="c10::BFloat16", dims=four)
    trace.operator("aten::lstm", 5, 52, input_types=["float"], input_dims=four, concrete_inputs=VALUES)
    after, _ = applied(ReplaceRecurrentLayers(), trace)
    cast = replace(SMALL, item_bytes=2, steps=16, batch=4, has_persistent=False)
    assert work_bytes(cast, AMPERE.compute_capability) in after.size_bytes
    assert reserve_bytes(cast) in after.size_bytes


def trained(item: str) -> TraceBuilder:
    """The same, with an optimizer that steps."""
    return step(item=item).annotation("Optimizer.step#SGD.step", 160, 170)


def test_calls_that_no_policy_replaces_widen_the_interval() -> None:
    known, unknown = (
        run_stages(read_trace(trained(item).bytes()), AS_RECORDED) for item in ("float", "c10::BFloat16")
    )
    assert known.open_recurrent == (0, 0)
    less, more = unknown.open_recurrent
    half = replace(SMALL, item_bytes=2, has_persistent=False)
    assert more == less + reserve_bytes(half) + work_bytes(half, AMPERE.compute_capability)


@pytest.mark.parametrize(
    ("item", "said"),
    [("float", "follow a formula fitted to cuDNN's answers"), ("c10::BFloat16", "is not counted")],
)
def test_the_estimate_says_what_of_recurrent_layers_is_not_certain(item: str, said: str) -> None:
    trace = read_trace(step(item=item).bytes())
    blocks = pair_blocks(trace)
    texts = list(assumptions(Recorded(trace, blocks, attribute(trace, blocks)), None))
    assert [said in text for text in texts if "recurrent" in text] == [True]
