"""Optimizers: the CPU's default is a for-loop over the parameters, CUDA's works on lists of all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from xmem.orchestration.optimizer.optimizer_steps import ALGORITHMS, FOREACH, Parameter, Step
from xmem.orchestration.rewriting import Rewriting, Stretch
from xmem.orchestration.tape import Allocations, Tape
from xmem.records import dataclass
from xmem.run.operators import ANNOTATION, OPERATOR
from xmem.run.recorded import Context
from xmem.run.workload import Workload
from xmem.trace.attribution import Category, Phase

_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_LISTS = ("aten::_foreach_", "aten::_fused_")
_TELLING = ("aten::add", "aten::mul_", "aten::add_", "aten::clone")  # the first of them tells a sum's purpose
_NUMBER_BYTES = 8
_SUMS_OF_ITS_OWN = {"adadelta": 2}  # that are no weight decay: square_avg.add(eps), acc_delta.add(eps)


class DropStepCounters:
    """`step` and the like of each parameter's state are tensors of one number that stay in host memory.

    Source: `_init_group` in `torch/optim/*.py`: ``torch.tensor(0.0)`` unless `capturable` or `fused`; ASGD
    keeps them on the device. Blocks of at most 8 bytes that a step makes, in a foreign trace; a capture marks
    them as host memory itself.
    """

    name = "drop_step_counters"
    description = "step counters of optimizers stay in host memory"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Drop numbers that steps make."""
        if context.is_captured:
            return workload
        drop = np.zeros(len(workload), np.bool_)
        for step in _steps(workload, context):
            if step.name != "asgd" and not step.fused and not any(step.parameter_bytes <= _NUMBER_BYTES):
                drop[step.made[workload.size_bytes[step.made] <= _NUMBER_BYTES]] = True
        return workload.select(~drop) if drop.any() else workload


class ReplaceOptimizerTemporaries:
    """A step that ran as a for-loop takes the temporaries of the `foreach` implementation.

    Source: `torch/optim/optimizer.py`, `_default_to_fused_or_foreach`: `foreach` where all parameters are
    on CUDA, since 2.0; `torch/optim/*.py` of 2.13 for what each allocates (`optimizer_steps`). The for-loop
    holds a few tensors of one parameter at a time, `foreach` lists of all: for Adam 3 or 4 of the largest
    parameter against all parameters once. Nothing changes for optimizers that take the for-loop on CUDA too
    (Adafactor, Muon, LBFGS), where the trace shows lists (`aten::_foreach_*`, `aten::_fused_*`), nor in our
    captures, in which the script's own choice and CUDA's default have been followed.

    Parameters are the gradients alive when the step begins, in the order of the loop's own tensors where
    these reveal it; the first step reveals the groups, as it makes the state of a group before its
    temporaries, otherwise all are one group. Weight decay is recognised by its sums, momentum by its state.
    Reference: cpu_vs_cuda_memory, section 9.
    """

    name = "replace_optimizer_temporaries"
    description = "optimizers work on lists of all parameters (foreach), not on one at a time"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Replace what for-loops allocate."""
        if context.is_captured:
            return workload  # a capture has made the choice that CUDA makes
        rewriting = Rewriting(workload)
        changed = False
        first: dict[str, tuple[NDArray[np.int64], list[int]]] = {}
        for step in _steps(workload, context):
            algorithm = ALGORITHMS.get(step.name)
            if algorithm is None or step.lists or algorithm.implementations[0] != FOREACH:
                continue
            if len(step.parameter_bytes) == 0:
                continue
            sizes = step.parameter_bytes
            if len(step.state):
                first[step.name] = sizes, _groups(step)
            told, groups = first.get(step.name, (sizes, []))
            _replace(rewriting, step, told if _same_in_some_order(told, sizes) else sizes, groups)
            changed = True
        return rewriting.finish() if changed else workload


@dataclass(frozen=True)
class _Recorded:
    """A step as the trace has it.

    Attributes:
        name: Name of the optimizer, in lower case.
        begin_ns: When it begins.
        end_ns: When it ends.
        made: Rows of the workload that it allocates, in order.
        temporary: Rows that are freed when it ends, without single numbers.
        state: Rows that are not, without single numbers.
        parameter_bytes: Size of each parameter with a gradient, in order.
        sums: Number of sums (`aten::add`) that are new tensors.
        sum_first: Whether its first operator on parameters is one of them.
        lists: Whether it works on lists.
        fused: Whether one kernel does all.
    """

    name: str
    begin_ns: int
    end_ns: int
    made: NDArray[np.intp]
    temporary: NDArray[np.intp]
    state: NDArray[np.intp]
    parameter_bytes: NDArray[np.int64]
    sums: int
    sum_first: bool
    lists: bool
    fused: bool


class _ByTime:
    """Some rows of events, by the time at which they begin."""

    def __init__(self, begin_ns: NDArray[np.int64], chosen: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(chosen)
        self.rows = rows[np.argsort(begin_ns[rows], kind="stable")]
        self._begin_ns = begin_ns[self.rows]

    def within(self, begin_ns: int, end_ns: int) -> NDArray[np.intp]:
        """Return those that begin from one time until before another."""
        first, last = np.searchsorted(self._begin_ns, (begin_ns, end_ns))
        return self.rows[first:last]


class _Gradients:
    """Gradients that are alive, asked at times that do not decrease."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._rows = np.flatnonzero(workload.category == Category.GRADIENT)
        self._alloc_ns = workload.alloc_ns[self._rows]
        self._seen = 0
        self._alive = self._rows[:0]

    def at(self, time_ns: int) -> NDArray[np.intp]:
        """Return those that are allocated before this time and freed after it, in order."""
        seen = int(np.searchsorted(self._alloc_ns, time_ns))
        rows = np.concatenate((self._alive, self._rows[self._seen : seen]))
        self._alive, self._seen = rows[self._workload.free_ns[rows] > time_ns], seen
        return self._alive


def _steps(workload: Workload, context: Context) -> list[_Recorded]:
    events, names, operators = context.trace.events, context.trace.names, context.operators
    annotated = operators.rows_named(lambda name: _STEP.fullmatch(name) is not None, ANNOTATION)
    in_lists = _ByTime(events.begin_ns, operators.rows_named(lambda name: name.startswith(_LISTS)))
    fused = _ByTime(events.begin_ns, operators.rows_named(lambda name: name.startswith(_LISTS[1])))
    outermost = (events.kind == OPERATOR) & (operators.parent < 0)
    is_sum = outermost & operators.rows_named(lambda name: name == "aten::add")
    sums = _ByTime(events.begin_ns, is_sum)
    telling = _ByTime(events.begin_ns, outermost & operators.rows_named(lambda name: name in _TELLING))
    gradients = _Gradients(workload)
    found = []
    for row in _ByTime(events.begin_ns, annotated).rows.tolist():
        begin_ns, end_ns = int(events.begin_ns[row]), int(events.end_ns[row])
        first, last = np.searchsorted(workload.alloc_ns, (begin_ns, end_ns))
        made = np.arange(first, last)
        sized = made[workload.size_bytes[made] > _NUMBER_BYTES]
        gone = workload.free_ns[sized] <= end_ns
        matched = _STEP.fullmatch(names[int(events.name[row])])
        assert matched is not None
        found.append(
            _Recorded(
                name=matched[1].lower(),
                begin_ns=begin_ns,
                end_ns=end_ns,
                made=made,
                temporary=sized[gone],
                state=sized[~gone],
                parameter_bytes=_parameters(workload, gradients.at(begin_ns), sized[gone], sized[~gone]),
                sums=len(sums.within(begin_ns, end_ns)),
                sum_first=bool(is_sum[telling.within(begin_ns, end_ns)[:1]].any()),
                lists=len(in_lists.within(begin_ns, end_ns)) > 0,
                fused=len(fused.within(begin_ns, end_ns)) > 0,
            )
        )
    return found


def _parameters(
    workload: Workload, gradients: NDArray[np.intp], temporary: NDArray[np.intp], state: NDArray[np.intp]
) -> NDArray[np.int64]:
    """Return the sizes of the gradients that a step finds, in the order of the optimizer if that is known.

    Gradients are made from the last parameter to the first. The for-loop makes as many tensors for each
    parameter, one after the other, be it state or temporaries.
    """
    sizes: NDArray[np.int64] = workload.size_bytes[gradients][::-1]
    for tensors in (state, temporary):
        made = workload.size_bytes[tensors]
        each, rest = divmod(len(made), max(len(sizes), 1))
        if each == 0 or rest:
            continue
        by_parameter = made.reshape(-1, each)
        alike = (by_parameter == by_parameter[:, :1]).all()
        if alike and _same_in_some_order(by_parameter[:, 0], sizes):
            sizes = by_parameter[:, 0]
            break
    return sizes


def _same_in_some_order(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    return np.array_equal(np.sort(one), np.sort(other))


def _groups(step: _Recorded) -> list[int]:
    """Return the number of parameters per group, as a first step reveals: state of a group, then its
    temporaries."""
    if step.name == "sgd":
        return []  # makes its state on the way
    per_parameter, rest = divmod(len(step.state), len(step.parameter_bytes))
    if per_parameter == 0 or rest:
        return []
    before = np.searchsorted(step.temporary, step.state)  # does not decrease: both are in order
    counts = np.diff(np.flatnonzero(np.diff(before, prepend=-1, append=-1)))
    return [] if (counts % per_parameter).any() else (counts // per_parameter).tolist()


def _options(step: _Recorded) -> frozenset[str]:
    per_parameter = round(step.sums / len(step.parameter_bytes)) - _SUMS_OF_ITS_OWN.get(step.name, 0)
    options = set()
    if step.name != "sgd":
        if per_parameter > 0:
            options.add("weight_decay")
    elif per_parameter > 1:
        options |= {"momentum", "nesterov", "weight_decay"}
    elif per_parameter == 1:
        options |= {"weight_decay"} if step.sum_first else {"momentum", "nesterov"}
    return frozenset(options)


def _replace(rewriting: Rewriting, step: _Recorded, sizes: NDArray[np.int64], groups: Sequence[int]) -> None:
    workload = rewriting.workload
    options = _options(step)
    if step.name == "sgd" and len(step.state):
        options |= {"momentum"}
    if sum(groups) != len(sizes):
        groups = [len(sizes)]
    state = step.state
    played = _step_of_groups(step.name, sizes, groups, options, fresh=len(state) > 0)
    kept = np.flatnonzero(played.kept & (played.size_bytes > _NUMBER_BYTES))
    begin_ns = step.begin_ns
    if np.array_equal(played.size_bytes[kept], workload.size_bytes[state]):
        recorded = dict(zip(kept.tolist(), state.tolist(), strict=True))
    else:
        # state that is not understood stays where it is, and temporaries come behind it
        recorded = {}
        played = _step_of_groups(step.name, sizes, groups, options, fresh=False)
        begin_ns = int(workload.alloc_ns[state[-1]]) + 1
    iteration = int(workload.iteration[step.made[0]]) if len(step.made) else -1
    rewriting.drop(step.temporary.tolist())
    rewriting.play(
        played,
        Stretch(begin_ns=begin_ns, end_ns=step.end_ns, phase=Phase.OPTIMIZER_STEP, iteration=iteration),
        recorded=recorded,
        categories=dict.fromkeys(np.flatnonzero(played.kept).tolist(), Category.OPTIMIZER_STATE),
    )


def _step_of_groups(
    name: str, sizes: NDArray[np.int64], groups: Sequence[int], options: frozenset[str], *, fresh: bool
) -> Allocations:
    """Return what a step allocates for all parameters, in groups of so many."""
    number_of: dict[tuple[int, ...], int] = {}  # groups of the same sizes are one
    rest = iter(sizes.tolist())
    order = [number_of.setdefault(tuple(islice(rest, count)), len(number_of)) for count in groups]
    each = [_step_of_group(name, group, options, fresh) for group in number_of]
    return Allocations.in_turn(each, np.array(order, np.intp))


@lru_cache(maxsize=1024)  # steps repeat
def _step_of_group(name: str, sizes: tuple[int, ...], options: frozenset[str], fresh: bool) -> Allocations:
    """Return what a step allocates for a parameter group: it lets go of everything that is not state."""
    parameters = [
        Parameter(name=str(number), shape=None, size_bytes=size, dtype="float32", group=0, gradient=-1)
        for number, size in enumerate(sizes)
    ]
    without_state = frozenset(parameter.name for parameter in parameters) if fresh else frozenset()
    tape = Tape()
    ALGORITHMS[name].step(tape, Step(parameters, without_state, FOREACH, options))
    return tape.allocations()
