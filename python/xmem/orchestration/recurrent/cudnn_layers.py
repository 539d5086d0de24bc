"""Recurrent layers: the CPU computes them layer by layer or step by step, CUDA in one call of cuDNN."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from xmem.cudnn.libraries import bundled_with
from xmem.dtypes import item_bytes
from xmem.orchestration.call_nodes import nodes_of_calls, rows_by_event
from xmem.orchestration.recurrent.recurrent_spaces import (
    RecurrentCall,
    dropout_state_bytes,
    reserve_bytes,
    work_bytes,
)
from xmem.orchestration.rewriting import Rewriting, Stretch
from xmem.orchestration.tape import Tape
from xmem.records import dataclass
from xmem.run.inputs import Inputs
from xmem.run.operators import OperatorIndex
from xmem.run.recorded import Context
from xmem.run.workload import Workload
from xmem.trace.attribution import Category, Phase

RECURRENT_CALLS = {"aten::lstm": 4, "aten::gru": 3, "aten::rnn_tanh": 1, "aten::rnn_relu": 1}
"""Names, and how many gates a cell of each has."""
_OF_CUDNN = frozenset({"float", "double", "c10::Half"})
_BFLOAT16 = "c10::BFloat16"
_WITH_PERSISTENT = frozenset({"float", "c10::Half"})
"""Types of which cuDNN has kernels that stay on the GPU."""
_SEED_BYTES = 8
_STACK = "aten::stack"
_CELLS = frozenset({"aten::lstm_cell", "aten::gru_cell"})
_FUSED = frozenset({"aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_gru_cell"})


class ReplaceRecurrentLayers:
    """`nn.LSTM`, `nn.GRU` and `nn.RNN` are one call of cuDNN, however many layers and directions they have.

    On the CPU oneDNN computes each layer of an LSTM and keeps a workspace of its own, or the layers run step
    by step and keep the gates of every step. With cuDNN a call makes (`_cudnn_rnn`, `_cudnn_rnn_backward`,
    `cudnn/RNN.cpp`; allocator history of 2.6.0 and 2.12.0 on the phantom GPU):

    - the input in order of time where it is given by sequence, the result, the last states, a workspace that
      ends with the call, and in training the space that is reserved until the backward;
    - an input given by sequence lives until the backward;
    - with dropout, at the first call, the state of the random generator, which stays;
    - in the backward zeros where no gradient reaches the result or a last state, the gradients of input and
      first states, twice the workspace, and one block for the gradients of all weights; where there are no
      biases, which cuDNN's space has nevertheless, a block for each of them in its place.

    Takes the shapes of the inputs (``record_shapes=True``). What runs without cuDNN, and bfloat16, is left
    alone. Assumption: weights lie in one block, as modules on a GPU have them. Reference: cpu_vs_cuda_memory,
    section 7.6.
    """

    name = "replace_recurrent_layers"
    inputs_of = frozenset(RECURRENT_CALLS)
    description = (
        "recurrent layers run in cuDNN: its workspace, its reserve space, gradients of weights in one block"
    )

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Replace calls, and their parts of the backward."""
        rewriting = Rewriting(workload)
        changed = has_generator = False
        for recorded in _recorded_calls(workload, context):
            needs_generator = recorded.call.drops and not has_generator
            generator_bytes = dropout_state_bytes(context.target.device) if needs_generator else 0
            _replace_forward(rewriting, recorded, context, generator_bytes)
            if len(recorded.nodes):
                _replace_backward(rewriting, recorded, context)
            has_generator |= needs_generator
            changed = True
        return rewriting.finish() if changed else workload


@dataclass(frozen=True)
class _RecordedCall:
    """A call as the trace has it.

    Attributes:
        call: Its shapes.
        row: Row of the EventTable.
        made: Rows of the workload that are allocated inside, in order.
        result: The row with the states of all steps.
        states: Rows of the last states, one or, with an LSTM, two; fewer if they are not found.
        work_bytes: Sizes of the workspaces of the forward and of each of the two calls of the backward.
        ungiven_bytes: Sizes of the result and last states that no gradient reaches, in this order.
        nodes: Rows of the EventTable of its nodes in the backward, in order.
        made_backward: Rows of the workload that they allocate, in order.
    """

    call: RecurrentCall
    row: int
    made: NDArray[np.intp]
    result: int
    states: tuple[int, ...]
    work_bytes: tuple[int, int]
    ungiven_bytes: tuple[int, ...]
    nodes: NDArray[np.intp]
    made_backward: NDArray[np.intp]


def cells_by_steps(operators: OperatorIndex) -> NDArray[np.int32]:
    """Return the rows of single steps that ran operator by operator, where CUDA has one kernel."""
    cells = operators.rows_named(_CELLS)
    fused = np.flatnonzero(operators.rows_named(_FUSED)).astype(np.int32)
    is_open = cells.copy()
    is_open[operators.enclosing(fused, cells)] = False
    return np.flatnonzero(is_open & cells).astype(np.int32)


def recurrent_calls(operators: OperatorIndex) -> dict[int, RecurrentCall | None]:
    """Return calls of recurrent layers by row of the EventTable, in order of time; None for those not known.

    These are calls without shapes, and those of bfloat16, which versions of PyTorch treat differently: 2.6
    computes it without cuDNN, 2.12 with a copy of the weights in each call. What autocast casts, to bfloat16
    too, cuDNN computes: in our captures, such a call is inside of the one that the script made.
    """
    events = operators.events
    rows = np.flatnonzero(operators.rows_named(RECURRENT_CALLS))
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    calls: dict[int, RecurrentCall | None] = {}
    outer = -1
    for row in rows.tolist():
        is_cast = (
            outer >= 0
            and events.end_ns[row] <= events.end_ns[outer]
            and events.thread[row] == events.thread[outer]
        )
        if is_cast:
            calls.pop(outer, None)
        calls[row] = _recurrent_call(operators, row, _OF_CUDNN | {_BFLOAT16} if is_cast else _OF_CUDNN)
        outer = outer if is_cast else row
    return calls


def unmodelled_calls(operators: OperatorIndex) -> list[RecurrentCall]:
    """Return the calls in bfloat16, which PyTorch's releases treat differently, as cuDNN computes them."""
    unknown = [row for row, call in recurrent_calls(operators).items() if call is None]
    calls = (_recurrent_call(operators, row, frozenset({_BFLOAT16})) for row in unknown)
    return [call for call in calls if call is not None]


def calls_of_cudnn(context: Context) -> dict[int, RecurrentCall]:
    """Return the calls that cuDNN runs, as far as they are known."""
    if not context.target.settings.cudnn_enabled:
        return {}
    return {row: call for row, call in recurrent_calls(context.operators).items() if call is not None}


def in_cudnn(context: Context, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which operators are part of a recurrent layer, or of its backward, that cuDNN runs."""
    calls = np.array(list(calls_of_cudnn(context)), np.int32)
    operators = context.operators
    if len(calls) == 0 or len(rows) == 0:
        return np.zeros(len(rows), np.bool_)
    found: NDArray[np.bool_] = (operators.rows_owned_by(rows, calls) >= 0) | (
        operators.rows_owned_by(operators.forward_of(rows), calls) >= 0
    )
    return found


def _recorded_calls(workload: Workload, context: Context) -> Iterator[_RecordedCall]:
    operators, events = context.operators, context.trace.events
    calls_by_row = calls_of_cudnn(context)
    if not calls_by_row:
        return
    calls = np.array(list(calls_by_row), np.intp)
    mask = np.zeros(len(events), np.bool_)
    mask[calls] = True
    made = rows_by_event(operators.enclosing(workload.operator, mask))
    nodes = nodes_of_calls(calls, context)
    of_node = np.zeros(len(events), np.bool_)
    for of_call in nodes:
        of_node[of_call] = True
    made_by_node = rows_by_event(operators.enclosing(workload.operator, of_node))
    stacks = operators.rows_named({_STACK})
    capability = context.target.compute_capability
    before_9_8 = bundled_with(context.target.torch_version).version < (9, 8)
    nothing = np.empty(0, np.intp)
    for (row, call), of_call in zip(calls_by_row.items(), nodes, strict=True):
        inside = made.get(row, nothing)
        size_bytes = workload.size_bytes[inside]
        lasting = workload.free_ns[inside] > events.end_ns[row]
        states: list[int] = []
        for of_state in reversed(call.state_bytes):
            found = inside[lasting & (size_bytes == of_state)]
            if len(found) and call.result_bytes not in call.state_bytes:
                states.insert(0, int(found[-1]))
                lasting &= inside != found[-1]
        results = inside[lasting & (size_bytes == call.result_bytes)]
        if len(results):
            result = int(results[-1])
            forward, backward = (
                work_bytes(call, capability, backward=in_backward, before_9_8=before_9_8)
                for in_backward in (False, True)
            )
            of_nodes = [made_by_node[node] for node in of_call.tolist() if node in made_by_node]
            yield _RecordedCall(
                call=call,
                row=row,
                made=inside,
                result=result,
                states=tuple(states),
                work_bytes=(forward, backward),
                ungiven_bytes=_ungiven(call, row, stacks, of_call, context),
                nodes=of_call,
                made_backward=np.sort(np.concatenate(of_nodes)) if of_nodes else nothing,
            )


def _ungiven(
    call: RecurrentCall, row: int, stacks: NDArray[np.bool_], nodes: NDArray[np.intp], context: Context
) -> tuple[int, ...]:
    """Return the sizes of the result and the last states that no gradient reaches, in this order.

    A call on the CPU makes the result, then a stack of all layers' last states, two for an LSTM, and brings
    the result into the order of sequences at last. Where oneDNN's layer makes result and states in one node
    and a state is reached, the result is taken as not reached: such scripts read last states only.
    """
    events = context.trace.events
    inside = stacks & (events.thread == events.thread[row])
    inside &= (events.begin_ns >= events.begin_ns[row]) & (events.end_ns <= events.end_ns[row])
    numbers = np.sort(events.sequence_number[inside])[-len(call.state_bytes) :]
    if len(numbers) < len(call.state_bytes) or numbers[0] < 0:
        return call.state_bytes
    reached = events.sequence_number[nodes]
    of_states = np.isin(numbers, reached)
    own_states = (
        len(numbers) if call.packed and call.directions == 1 else 0
    )  # one direction's, in order of time
    of_result = bool((reached == numbers[0] - 1 - own_states).any())
    if call.is_lstm and call.directions == 1 and not call.packed:
        of_result &= not of_states.any()
    of_result |= bool((reached > numbers[-1]).any())
    sizes = (call.result_bytes, *call.state_bytes)
    return tuple(size for size, is_given in zip(sizes, (of_result, *of_states), strict=True) if not is_given)


def _recurrent_call(operators: OperatorIndex, row: int, dtypes: frozenset[str]) -> RecurrentCall | None:
    """Return the shapes of a call, None if the trace does not say.

    ``lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)``, or for
    packed sequences ``lstm(data, batch_sizes, hx, params, ..., bidirectional)``.
    """
    events, names = operators.events, operators.trace.names
    inputs = operators.inputs(row)
    (dtype,) = operators.first_input_type(np.array([row]))
    size_bytes = item_bytes(dtype)
    if inputs is None or size_bytes is None or dtype not in dtypes:
        return None
    gates = RECURRENT_CALLS[names[int(events.name[row])]]
    data = inputs.shape(0)
    packed = len(data) == 2
    first = 4 if packed else 3  # position of has_biases
    given, weights = inputs.shapes_in(first - 2), inputs.shapes_in(first - 1)
    layers = inputs.integer(first + 1)
    has_flags = bool(inputs.value(first + (4 if packed else 5)))
    if not given or not weights or not layers or layers < 0 or not has_flags or 0 in data:
        return None
    if len(data) not in (2, 3) or len(given[0]) != 3 or any(len(weight) not in (1, 2) for weight in weights):
        return None
    training, both_ways, by_sequence = (inputs.flag(first + place) for place in (3, 4, 5))
    hidden = weights[0][0] // gates
    output = given[0][2]
    return RecurrentCall(
        gates=gates,
        item_bytes=size_bytes,
        steps=math.prod(data[:-1]),
        longest=_longest(inputs, data, packed=packed, by_sequence=not packed and by_sequence),
        batch=given[0][1],
        input_width=data[-1],
        hidden=hidden,
        projection=output if output != hidden else 0,
        layers=layers,
        directions=2 if both_ways else 1,
        biases=inputs.flag(first),
        training=training,
        drops=training and layers > 1 and bool(inputs.number(first + 2)),
        by_sequence=not packed and by_sequence,
        packed=packed,
        has_persistent=dtype in _WITH_PERSISTENT,
        weights_bytes=tuple(math.prod(weight) * size_bytes for weight in weights),
    )


def _longest(inputs: Inputs, data: Sequence[int], *, packed: bool, by_sequence: bool) -> int:
    """Return the steps of the longest sequence: of packed ones, how many sizes of batches there are."""
    if packed:
        return next(iter(inputs.shape(1)), data[0])
    return data[1 if by_sequence else 0]


def _stretch(
    rewriting: Rewriting, recorded: _RecordedCall, span: tuple[int, int], phase: Phase, operator: int
) -> Stretch:
    workload = rewriting.workload
    return Stretch(
        begin_ns=span[0],
        end_ns=span[1],
        phase=phase,
        iteration=int(workload.iteration[recorded.result]),
        operator=operator,
        module=int(workload.module[recorded.result]),
        source_line=int(workload.source_line[recorded.result]),
    )


def _replace_forward(
    rewriting: Rewriting, recorded: _RecordedCall, context: Context, generator_bytes: int
) -> None:
    """Put the call of cuDNN in place of what the CPU allocates.

    Args:
        rewriting: Takes the changes.
        recorded: The call.
        context: Context of the workload.
        generator_bytes: State of the random generator that this call makes, 0 = none.
    """
    events, workload, call = context.trace.events, rewriting.workload, recorded.call
    span = int(events.begin_ns[recorded.row]), int(events.end_ns[recorded.row])
    tape = Tape()
    if generator_bytes:
        tape.flash(_SEED_BYTES)
        tape.keep(generator_bytes)
    generator = len(tape.size_bytes) - 1
    if call.by_sequence:
        tape.new(call.input_bytes)
    held = {tape.new(call.result_bytes): recorded.result}
    states = [tape.new(size_bytes) for size_bytes in call.state_bytes]
    held.update(zip(states, recorded.states, strict=False))
    categories = {tape.new(recorded.work_bytes[0]): Category.WORKSPACE}
    if generator_bytes:
        categories[generator] = Category.WORKSPACE
    ends_ns = {}
    if call.training:
        reserve = tape.new(reserve_bytes(call))
        categories[reserve] = Category.ACTIVATION
        if len(recorded.nodes):
            ends_ns[reserve] = int(events.end_ns[recorded.nodes].max())
        elif events.sequence_number[recorded.row] >= 0:  # autograd keeps it, and nobody asks for it
            ends_ns[reserve] = int(workload.free_ns[recorded.result])
    rewriting.drop([row for row in recorded.made.tolist() if row not in held.values()])
    rewriting.play(
        tape.allocations(),
        _stretch(rewriting, recorded, span, Phase(int(workload.phase[recorded.result])), recorded.row),
        recorded=held,
        ends_ns=ends_ns,
        categories=categories,
    )


def _replace_backward(rewriting: Rewriting, recorded: _RecordedCall, context: Context) -> None:
    """Put the backward of cuDNN in place of the call's nodes."""
    events, workload, call = context.trace.events, rewriting.workload, recorded.call
    span = int(events.begin_ns[recorded.nodes].min()), int(events.end_ns[recorded.nodes].max())
    made = recorded.made_backward
    lasting = made[workload.free_ns[made] > span[1]]
    of_weights = workload.category[lasting] == Category.GRADIENT
    are_gradients = bool(of_weights.any())
    if not are_gradients:  # of weights that were cast: their own gradients are made of them
        sizes = workload.size_bytes[lasting]
        of_weights = np.isin(sizes, call.weights_bytes) & (sizes != call.input_bytes)
    gradients_end_ns = int(workload.free_ns[lasting[of_weights]].max(initial=span[1]))
    rewriting.extend(recorded.result, span[1])
    if call.by_sequence:
        _save_input(rewriting, recorded, int(events.begin_ns[recorded.row]), span[1])
    held, ends_ns, categories = {}, {}, {}
    tape = Tape()
    for size_bytes in recorded.ungiven_bytes:
        tape.new(size_bytes)  # zeros
    with tape.frame("input", "gradient", "work") as frame:
        if call.by_sequence:
            frame.let("input", tape.new(call.input_bytes))
            frame.let("gradient", tape.new(call.result_bytes))
        of_input = tape.new(call.input_bytes)
        for size_bytes in call.state_bytes:
            tape.new(size_bytes)
        (work,) = frame.let("work", tape.new(recorded.work_bytes[1]))
        categories[work] = Category.WORKSPACE
    passed_on = lasting[~of_weights & (workload.size_bytes[lasting] == call.input_bytes)]
    if len(passed_on):
        held[of_input] = int(passed_on[-1])
    if call.by_sequence:
        tape.new(call.input_bytes)
    of_all = tape.new(call.weight_space_bytes)
    categories[tape.new(recorded.work_bytes[1])] = Category.WORKSPACE
    in_place = [of_all] if call.biases else [tape.new(size_bytes) for size_bytes in call.weights_bytes]
    ends_ns.update(dict.fromkeys(in_place, gradients_end_ns))
    categories.update(dict.fromkeys(in_place, Category.GRADIENT if are_gradients else Category.TEMPORARY))
    rewriting.drop([row for row in made.tolist() if row not in held.values()])
    rewriting.play(
        tape.allocations(),
        _stretch(rewriting, recorded, span, Phase.BACKWARD, int(recorded.nodes[0])),
        recorded=held,
        ends_ns=ends_ns,
        categories=categories,
    )


def _save_input(rewriting: Rewriting, recorded: _RecordedCall, begin_ns: int, until_ns: int) -> None:
    """Let the input as given live until the backward, where the CPU saves a copy in order of time: it is the
    last block of its size that exists when the call begins.
    """
    workload = rewriting.workload
    there = (workload.alloc_ns < begin_ns) & (workload.free_ns > begin_ns)
    rows = np.flatnonzero(there & (workload.size_bytes == recorded.call.input_bytes))
    if len(rows):
        rewriting.extend(int(rows[-1]), until_ns)
