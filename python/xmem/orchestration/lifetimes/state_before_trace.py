"""Parameters, gradients and optimizer state that were there before the profiler began.

Memory events show what is allocated and freed while the profiler runs. Of a model that was made earlier, a
trace shows the shapes instead, where it was recorded with `record_shapes=True`: autograd hands each parameter
its gradient (`torch::autograd::AccumulateGrad`), which has the parameter's shape and dtype; a run without
gradients hands its weights to operators. Without shapes, the gradients that a backward pass leaves behind
have the sizes of the parameters.

The allocator places a run by its order, and the run began with its first iteration. So gradients and state
come where the first iteration of the trace would have made them, if another one follows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from xmem.orchestration.lifetimes.given_weights import WEIGHTS_OF, given_weights, input_bytes
from xmem.records import dataclass
from xmem.run.operators import ANNOTATION, OPERATOR, covered
from xmem.run.recorded import Recorded
from xmem.run.workload import Workload, concatenated, made_by_policy
from xmem.trace.attribution import Category, Phase
from xmem.trace.blocks import BORN_BEFORE, NEVER

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_STEP = "Optimizer.step#"

_STATES_OF = {
    "sgd": 0,
    "adagrad": 1,
    "rmsprop": 1,
    "lion": 1,
    "muon": 1,
    "asgd": 1,
    "adadelta": 2,
    "rprop": 2,
    "adamax": 2,
}
"""Tensors of a parameter's size that an optimizer keeps for it (torch 2.13, ``torch.optim``); everything
named after Adam keeps two."""

_MOMENTUM = frozenset({"aten::mul_", "aten::_foreach_mul_", "aten::_fused_sgd_"})
_AMSGRAD = frozenset({"aten::maximum", "aten::_foreach_maximum_", "aten::maximum_"})
_MOSTLY = 0.5
_GRANULE_BYTES = 512  # kMinBlockSize (torch 2.13, c10/core/AllocatorConfig.h)


class AddStateBeforeTrace:
    """What a training run had before a trace of somebody else's began is on the GPU for the whole run.

    Not for captures, which list their tensors, and not where PyTorch's allocator gave its totals.
    """

    name = "add_state_before_trace"
    description = (
        "parameters, gradients and optimizer state from before the trace began are added by the shapes and "
        "the optimizer's name"
    )
    inputs_of = frozenset({_ACCUMULATE, *WEIGHTS_OF})

    def __call__(self, workload: Workload, context: Recorded) -> Workload:
        """Add a block for each tensor that the run must have had and the trace did not see allocated."""
        if context.is_captured or context.allocator is not None or len(workload) == 0:
            return workload
        sizes = parameters_before(workload, context)
        if not sizes:
            return workload
        total_bytes = sum(sizes)
        seen, missing = _seen(workload, sizes)
        category = workload.category.copy()
        category[seen] = Category.PARAMETER
        workload = workload.with_columns(category=category)
        begin_ns = int(workload.alloc_ns.min())
        older = [_older(Category.PARAMETER, missing, begin_ns)]
        steps = _steps(context)
        first_step_ns = int(context.trace.events.begin_ns[steps].min()) if len(steps) > 1 else begin_ns
        if _trained(context) and not _most_of(workload, Category.GRADIENT, total_bytes):
            backward_ns = _first_backward_ns(context) if len(steps) > 1 else begin_ns
            older.append(_older(Category.GRADIENT, sizes, backward_ns))
        states = _states(context, steps)
        if states and not _most_of(workload, Category.OPTIMIZER_STATE, states * total_bytes):
            of_each = [size for size in sizes for _ in range(states)]
            older.append(_older(Category.OPTIMIZER_STATE, of_each, first_step_ns))
        return concatenated([*older, workload])


@dataclass(frozen=True)
class StateBefore:
    """Bytes in blocks of what a trace explains of the memory that was there before it, by what it holds.

    Attributes:
        parameter_bytes: Parameters and buffers that the trace did not see allocated.
        tied_bytes: Bytes among them that may not be there, see :class:`GivenWeights`.
        gradient_bytes: Gradients that stay from iteration to iteration.
        optimizer_bytes: State of the optimizer.
    """

    parameter_bytes: int = 0
    tied_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0


def state_before(workload: Workload, context: Recorded) -> StateBefore:
    """Return what a trace of a GPU explains of the memory that was there before it.

    Args:
        workload: Blocks of the run.
        context: The trace.
    """
    sizes = [_in_block(size) for size in parameters_before(workload, context)]
    total_bytes = sum(sizes)
    states = _states(context, _steps(context))
    had_gradients = _trained(context) and not _most_of(workload, Category.GRADIENT, total_bytes)
    had_state = states and not _most_of(workload, Category.OPTIMIZER_STATE, states * total_bytes)
    return StateBefore(
        sum(_seen(workload, sizes)[1]),
        0 if _trained(context) else _in_block(given_weights(context).tied_bytes),
        total_bytes if had_gradients else 0,
        states * total_bytes if had_state else 0,
    )


def parameters_before(workload: Workload, context: Recorded) -> list[int]:
    """Return the sizes in bytes of the parameters that a run used, each once; empty where it does not show.

    Args:
        workload: Blocks of the run.
        context: The trace.
    """
    accumulated = np.flatnonzero(context.operators.rows_named([_ACCUMULATE]))
    if len(accumulated) == 0:
        return list(given_weights(context).sizes)
    rows = _fullest(accumulated, _backward_pass(accumulated, context))
    sizes = [size for size in input_bytes(context, rows, 0) if size]
    if len(sizes) == len(rows):
        return sizes
    left = (workload.category == Category.GRADIENT) & (workload.iteration >= 0)
    left_rows = np.flatnonzero(left)
    if len(left_rows) == 0:
        return []
    by_iteration = np.bincount(workload.iteration[left_rows], weights=workload.size_bytes[left_rows])
    fullest = left_rows[workload.iteration[left_rows] == int(np.argmax(by_iteration))]
    return [int(size) for size in workload.size_bytes[fullest]]


def _backward_pass(rows: NDArray[np.intp], context: Recorded) -> NDArray[np.intp]:
    """Return the number of the backward pass that each row belongs to: operators that record a node and do
    not run in a backward pass separate them."""
    operators, events = context.operators, context.trace.events
    recording = np.flatnonzero((events.kind == OPERATOR) & (events.sequence_number >= 0)).astype(np.int32)
    forward = recording[~operators.in_backward(recording)]
    return np.searchsorted(np.sort(events.begin_ns[forward]), events.begin_ns[rows])


def _fullest(rows: NDArray[np.intp], number: NDArray[np.intp]) -> list[int]:
    """Return the rows of the number that most of them have."""
    found, counts = np.unique(number, return_counts=True)
    chosen: list[int] = rows[number == found[int(np.argmax(counts))]].tolist()
    return chosen


def _seen(workload: Workload, sizes: Iterable[int]) -> tuple[NDArray[np.intp], list[int]]:
    """Return the rows of parameters that the trace saw allocated, and the sizes of the others.

    They are blocks of the same size that are never freed, and were not made by a step of the training.
    """
    lasting = workload.free_ns == NEVER
    lasting &= np.isin(workload.phase, (Phase.OTHER, Phase.LOAD, Phase.FORWARD))
    lasting &= (workload.flags & BORN_BEFORE) == 0
    rows_of: dict[int, list[int]] = {}
    for row in np.flatnonzero(lasting)[::-1].tolist():
        rows_of.setdefault(int(workload.size_bytes[row]), []).append(row)
    seen, missing = [], []
    for size, count in Counter(sizes).items():
        rows = [rows_of[size].pop() for _ in range(min(count, len(rows_of.get(size, ()))))]
        seen += rows
        missing += [size] * (count - len(rows))
    return np.array(seen, np.intp), missing


def _in_block(size_bytes: int) -> int:
    return -(-size_bytes // _GRANULE_BYTES) * _GRANULE_BYTES


def _most_of(workload: Workload, category: Category, bytes_: int) -> bool:
    """Return whether blocks of a category, those of the iteration with most of them, are most of a size."""
    rows = workload.category == category
    if not rows.any():
        return False
    iteration = np.maximum(workload.iteration[rows], -1) + 1
    return bool(np.bincount(iteration, weights=workload.size_bytes[rows]).max() >= _MOSTLY * bytes_)


def _trained(context: Recorded) -> bool:
    return bool(context.operators.rows_named([_ACCUMULATE]).any())


def _first_backward_ns(context: Recorded) -> int:
    rows = context.operators.rows_named([_ACCUMULATE])
    return int(context.trace.events.begin_ns[rows].min())


def _steps(context: Recorded) -> NDArray[np.intp]:
    """Return the rows of the optimizers' steps."""
    steps = context.operators.rows_named(lambda name: name.startswith(_STEP), ANNOTATION)
    return np.flatnonzero(steps)


def _states(context: Recorded, steps: NDArray[np.intp]) -> int:
    """Return how many tensors of each parameter's size the optimizer keeps, by its name and what it calls."""
    events, names = context.trace.events, context.trace.names
    if len(steps) == 0:
        return 0
    kinds = {names[int(name)][len(_STEP) :].partition(".")[0].lower() for name in events.name[steps]}
    states = max(_STATES_OF.get(kind, 2 if "adam" in kind else 0) for kind in kinds)
    if kinds == {"sgd"}:
        return int(_calls(context, steps, _MOMENTUM))
    return states + int(any("adam" in kind for kind in kinds) and _calls(context, steps, _AMSGRAD))


def _calls(context: Recorded, spans: NDArray[np.intp], wanted: frozenset[str]) -> bool:
    """Return whether one of these operators runs within one of these spans."""
    events = context.trace.events
    begins = events.begin_ns[context.operators.rows_named(wanted)]
    return bool(covered(begins, events.begin_ns[spans], events.end_ns[spans]).any())


def _older(category: Category, sizes: Sequence[int], begin_ns: int) -> Workload:
    count = len(sizes)
    return made_by_policy(
        count,
        size_bytes=np.array(sizes, np.int64),
        alloc_ns=np.full(count, begin_ns, np.int64),
        free_ns=np.full(count, NEVER, np.int64),
        category=np.full(count, category),
        phase=np.full(count, Phase.OTHER),
    )
