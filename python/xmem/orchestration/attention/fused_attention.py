"""Attention: the CPU computes it with its own kernels, or from scores that it keeps; CUDA with fused kernels
of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from xmem.dtypes import FLOATS, item_bytes
from xmem.orchestration.attention.fused_kernels import (
    AttentionCall,
    Kernel,
    kernel_of,
    lies_by_position,
    write_backward,
    write_forward,
)
from xmem.orchestration.call_nodes import nodes_of_calls, rows_by_event
from xmem.orchestration.rewriting import Rewriting, Stretch
from xmem.orchestration.tape import Tape
from xmem.records import dataclass
from xmem.run.recorded import Context
from xmem.run.workload import Workload
from xmem.trace.attribution import Category, Phase

_CALL = "aten::scaled_dot_product_attention"
_MATH = "aten::_scaled_dot_product_attention_math"
_COPIES = frozenset({"aten::contiguous", "aten::reshape", "aten::flatten", "aten::clone"})
_BOOL = "bool"


class ReplaceAttention:
    """`scaled_dot_product_attention` takes CUDA's kernel, with its result, what it saves and its workspaces.

    With attention dropout the CPU computes scores, softmax, noise and product as tensors and saves three of
    them (12 bytes a score in float32); without, its flash kernel saves the sums of the rows, as CUDA's do.
    CUDA takes flash for half precision without a mask, the memory-efficient kernel for float32 and masks,
    cuDNN on compute capability 9 and 10 from torch 2.12 on (`attention_kernels`, with sources). For each call
    whose CUDA kernel is fused:

    - what was allocated inside the call is dropped, except for the result, and replaced by what CUDA's kernel
    saves (mask in the kernel's form, log-sum-exp, state of the random generator); - the nodes of the backward
    that belong to the call, by autograd's sequence numbers, become one: gradients of query, key and value
    first, then its workspaces, then it lets go of what was saved; - query, key, value and result, which only
    CUDA's kernels save, live until then; - copies that bring a result or a gradient of the CPU's layout into
    order of positions are not made.

    Takes the shapes of the inputs (``record_shapes=True``); calls without them stay as they are, and so do
    those that CUDA computes from scores too (float64; odd widths). Not modelled: flash's split accumulators
    of calls too small to fill the GPU (transient). Reference: cpu_vs_cuda_memory, section 4.
    """

    name = "replace_attention"
    inputs_of = frozenset({_CALL})
    description = "attention takes CUDA's fused kernels: what they save and their workspaces, no scores"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Replace calls, and their parts of the backward."""
        rewriting = Rewriting(workload)
        copies = context.operators.rows_named(_COPIES)
        changed = False
        for recorded in _recorded_calls(workload, context):
            kernel = kernel_of(recorded.call, context.target)
            if kernel is not Kernel.MATH:
                _replace(rewriting, recorded, kernel, context, copies)
                changed = True
        return rewriting.finish() if changed else workload


@dataclass(frozen=True)
class _RecordedCall:
    """A call as the trace has it.

    Attributes:
        call: Its shapes.
        row: Row of the EventTable.
        made: Rows of the workload that are allocated inside, in order.
        result: The row that is returned.
        from_scores: Whether the CPU computed scores.
        previous_ns: End of the call before.
        nodes: Rows of the EventTable of its nodes in the backward, in order.
        made_backward: Rows of the workload that they allocate, in order.
    """

    call: AttentionCall
    row: int
    made: NDArray[np.intp]
    result: int
    from_scores: bool
    previous_ns: int
    nodes: NDArray[np.intp]
    made_backward: NDArray[np.intp]


def _recorded_calls(workload: Workload, context: Context) -> Iterator[_RecordedCall]:
    operators, events = context.operators, context.trace.events
    calls = np.flatnonzero(operators.rows_named({_CALL}))
    if len(calls) == 0:
        return
    calls = calls[np.argsort(events.begin_ns[calls], kind="stable")]
    mask = np.zeros(len(events), np.bool_)
    mask[calls] = True
    maths = np.flatnonzero(operators.rows_named({_MATH})).astype(np.int32)
    from_scores = set(operators.enclosing(maths, mask).tolist())
    made = rows_by_event(operators.enclosing(workload.operator, mask))
    nodes = nodes_of_calls(calls, context)
    owner = np.zeros(len(events), np.bool_)
    for of_call in nodes:
        owner[of_call] = True
    made_by_node = rows_by_event(operators.enclosing(workload.operator, owner))
    previous_ns = -1
    choices = _Choices(context)
    for row, of_call in zip(calls.tolist(), nodes, strict=True):
        end_ns = int(events.end_ns[row])
        call = _call(context, row)
        inside = made.get(row, np.empty(0, np.intp))
        if call is not None:
            lasting = inside[
                (workload.free_ns[inside] > end_ns) & (workload.size_bytes[inside] == call.result_bytes)
            ]
            if len(lasting):
                of_nodes = [made_by_node[node] for node in of_call.tolist() if node in made_by_node]
                yield _RecordedCall(
                    call=choices.of(call, int(events.begin_ns[row]), end_ns),
                    row=row,
                    made=inside,
                    result=int(lasting[-1]),
                    from_scores=row in from_scores,
                    previous_ns=previous_ns,
                    nodes=of_call,
                    made_backward=np.sort(np.concatenate(of_nodes)) if of_nodes else np.empty(0, np.intp),
                )
        previous_ns = end_ns


class _Choices:
    """The kernels that a script allows its calls, where those are not all of them."""

    def __init__(self, context: Context) -> None:
        noted = context.notes.attention
        by_name = {kernel.value: kernel for kernel in Kernel}
        self._time_ns = np.array(noted.time_ns, np.int64)
        self._allowed = [
            tuple(by_name[name] for name in names.split(",") if name in by_name) for names in noted.kernels
        ]
        self._in_order = noted.in_order

    def of(self, call: AttentionCall, begin_ns: int, end_ns: int) -> AttentionCall:
        """Return the call with its choice."""
        noted = int(np.searchsorted(self._time_ns, begin_ns))
        if noted == len(self._time_ns) or self._time_ns[noted] > end_ns:
            return call
        return replace(call, allowed=self._allowed[noted], in_order=self._in_order[noted] != 0)


def _call(context: Context, row: int) -> AttentionCall | None:
    """Return the call's shapes, None if they are not recorded or are not those of batches of heads."""
    inputs = context.operators.inputs(row)
    types = context.operators.input_types(row)
    if inputs is None or not types:
        return None
    dims = [inputs.shape(position) for position in range(len(inputs.shapes))]
    if len(dims) < 3 or any(len(shape) != 4 for shape in dims[:3]):
        return None
    query, key, value = dims[:3]
    size_bytes = item_bytes(types[0])
    if size_bytes is None or types[0] not in FLOATS or 0 in query or 0 in key:
        return None
    mask = dims[3] if len(dims) > 3 else ()
    return AttentionCall(
        item_bytes=size_bytes,
        bfloat16=types[0] == "c10::BFloat16",
        batch=query[0],
        heads=query[1],
        key_heads=key[1],
        length=query[2],
        key_length=key[2],
        width=query[3],
        value_width=value[3],
        by_position=_by_position(query, inputs.stride(0)),
        mask_elements=int(np.prod(mask)) if mask else 0,
        bool_mask=len(types) > 3 and types[3] == _BOOL,
        causal=inputs.flag(5),
        dropout=bool(inputs.number(4)),
        scattered=any(_scattered(dims[position], inputs.stride(position)) for position in range(3)),
    )


def _scattered(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether the elements of a head do not lie side by side."""
    return bool(strides) and shape[-1] > 1 and strides[-1] != 1


def _by_position(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether heads of one position lie side by side; assumed if strides are not recorded."""
    _, heads, length, _ = shape
    return not strides or heads == 1 or length == 1 or strides[1] <= strides[2]


def _replace(
    rewriting: Rewriting,
    recorded: _RecordedCall,
    kernel: Kernel,
    context: Context,
    copies: NDArray[np.bool_],
) -> None:
    events, workload = context.trace.events, rewriting.workload
    call, result = recorded.call, recorded.result
    begin_ns, end_ns = int(events.begin_ns[recorded.row]), int(events.end_ns[recorded.row])
    if len(recorded.nodes):
        saved_until_ns = int(events.end_ns[recorded.nodes].max())
    else:
        saved_until_ns = (
            int(workload.free_ns[result]) if events.sequence_number[recorded.row] >= 0 else end_ns
        )
    tape = Tape()
    forward = write_forward(tape, call, kernel, context.target)
    rewriting.drop([row for row in recorded.made.tolist() if row != result])
    rewriting.resize(result, tape.size_bytes[forward.result])
    rewriting.play(
        tape.allocations(),
        Stretch(
            begin_ns=begin_ns,
            end_ns=end_ns,
            phase=Phase(int(workload.phase[result])),
            iteration=int(workload.iteration[result]),
            operator=recorded.row,
            module=int(workload.module[result]),
            source_line=int(workload.source_line[result]),
        ),
        recorded={forward.result: result},
        ends_ns=dict.fromkeys(forward.saved, saved_until_ns),
        categories=dict.fromkeys(forward.saved, Category.ACTIVATION),
    )
    # What the CPU's flash kernel returns in a capture lies as on CUDA: copies after it are CUDA's too.
    if lies_by_position(call, kernel) and (recorded.from_scores or not context.is_captured):
        after = int(np.searchsorted(workload.alloc_ns, end_ns))
        _leave_out_copy(rewriting, result, after, context, copies)
    if len(recorded.nodes) == 0:
        return
    rewriting.extend(result, saved_until_ns)
    if recorded.from_scores:
        _save_inputs(rewriting, recorded, begin_ns, saved_until_ns)
    held = _replace_backward(rewriting, recorded, kernel, context)
    if recorded.from_scores and lies_by_position(call, kernel):
        for row in held:
            last_before_its_end = int(np.searchsorted(workload.alloc_ns, workload.free_ns[row])) - 1
            _leave_out_copy(rewriting, row, last_before_its_end, context, copies)


def _leave_out_copy(
    rewriting: Rewriting, block: int, copy: int, context: Context, copies: NDArray[np.bool_]
) -> None:
    """Replace ``copy`` by its source if it brings a block of the CPU's layout into order of positions."""
    workload = rewriting.workload
    if copy >= len(workload) or workload.size_bytes[copy] != workload.size_bytes[block]:
        return
    copied = context.operators.enclosing(workload.operator[copy : copy + 1], copies)[0] >= 0
    if copied and workload.alloc_ns[block] < workload.alloc_ns[copy] <= workload.free_ns[block]:
        rewriting.drop([copy])
        rewriting.extend(block, int(workload.free_ns[copy]))


def _save_inputs(rewriting: Rewriting, recorded: _RecordedCall, begin_ns: int, until_ns: int) -> None:
    """Let query, key and value live until the backward: the last blocks of their sizes before the call, or
    the one block of all three.
    """
    workload, call = rewriting.workload, recorded.call
    wanted = [call.query_bytes, call.key_bytes, call.value_bytes]
    packed = sum(wanted)
    first, last = np.searchsorted(workload.alloc_ns, (recorded.previous_ns, begin_ns))
    for row in range(int(last) - 1, int(first) - 1, -1):
        size_bytes = int(workload.size_bytes[row])
        if workload.free_ns[row] <= begin_ns:
            continue
        if size_bytes == packed and len(wanted) == 3:
            rewriting.extend(row, until_ns)
            return
        if size_bytes in wanted:
            rewriting.extend(row, until_ns)
            wanted.remove(size_bytes)


def _replace_backward(
    rewriting: Rewriting, recorded: _RecordedCall, kernel: Kernel, context: Context
) -> list[int]:
    """Replace the nodes of a call by one; returns the rows of the gradients that the trace holds too."""
    events, workload, result = context.trace.events, rewriting.workload, recorded.result
    begin_ns = int(events.begin_ns[recorded.nodes].min())
    end_ns = int(events.end_ns[recorded.nodes].max())
    tape = Tape()
    gradients = write_backward(tape, recorded.call, kernel, context.target)
    lasting = [row for row in recorded.made_backward.tolist() if workload.free_ns[row] > end_ns]
    numbers = [gradients.query, gradients.key, gradients.value]
    if recorded.from_scores:
        numbers.reverse()  # the order in which the CPU's nodes make them
    held = {}
    for number in numbers:
        same = [row for row in lasting if workload.size_bytes[row] == tape.size_bytes[number]]
        if same:
            held[number] = same[0]
            lasting.remove(same[0])
    dropped = set(recorded.made_backward.tolist()) - set(held.values()) - set(lasting)
    rewriting.drop(sorted(dropped))
    _hold_incoming(rewriting, recorded, begin_ns, end_ns)
    rewriting.play(
        tape.allocations(),
        Stretch(
            begin_ns=begin_ns,
            end_ns=end_ns,
            phase=Phase.BACKWARD,
            iteration=int(workload.iteration[result]),
            operator=int(recorded.nodes[0]),
            module=int(workload.module[result]),
            source_line=int(workload.source_line[result]),
        ),
        recorded=held,
    )
    return list(held.values())


def _hold_incoming(rewriting: Rewriting, recorded: _RecordedCall, begin_ns: int, end_ns: int) -> None:
    """Hold the gradient of the result until the node that replaces all others is done."""
    workload = rewriting.workload
    before = int(np.searchsorted(workload.alloc_ns, begin_ns))
    alive = (workload.free_ns[:before] > begin_ns) & (workload.free_ns[:before] <= end_ns)
    sized = workload.size_bytes[:before] == recorded.call.result_bytes
    found = np.flatnonzero(alive & sized & (np.arange(before) != recorded.result))
    if len(found):
        rewriting.extend(int(found[-1]), end_ns)
