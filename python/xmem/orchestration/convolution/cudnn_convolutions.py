"""Convolutions as cuDNN runs them: results first, then a workspace for as long as the kernels run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xmem.cudnn.planner_settings import PlannerSettings
from xmem.cudnn.problems import ConvolutionProblem
from xmem.cudnn.workspaces import Answer
from xmem.orchestration.convolution.convolution_calls import BACKWARD, FORWARD, Call, read_call, settings_of
from xmem.records import dataclass
from xmem.run.inputs import Inputs
from xmem.run.recorded import Context
from xmem.run.workload import Workload, concatenated, made_like
from xmem.trace.attribution import Category

# Nanoseconds after the beginning of the operator: results and what each needs while it is computed, one after
# the other. Nothing else is allocated or freed in the microsecond in which an operator begins.
_RESULT_NS, _WORKSPACE_NS, _STEP_NS, _END_NS = 1, 2, 3, 10


@dataclass(frozen=True)
class _Convolution:
    """A convolution of the trace, and the blocks that it leaves behind.

    Attributes:
        operator: Row of the EventTable.
        call: The computation, None if the trace does not say.
        inside: Rows of the workload that are allocated in it and freed before it ends.
        results: Rows of the blocks that outlive it, in the order in which CUDA allocates them; -1 = not
            found.
    """

    operator: int
    call: Call | None
    inside: NDArray[np.intp]
    results: tuple[int, ...]


class _Convolutions:
    """The convolutions of a workload."""

    def __init__(self, workload: Workload, context: Context) -> None:
        self._workload = workload
        self._context = context
        self._events = context.trace.events
        self._calls: dict[tuple[int, str, bool], tuple[Inputs | None, Call | None]] = {}

    def __iter__(self) -> Iterator[_Convolution]:
        workload, operators = self._workload, self._context.operators
        wanted = operators.rows_named({FORWARD, BACKWARD})
        owner = operators.enclosing(workload.operator, wanted)
        rows = np.flatnonzero(owner >= 0)
        rows = rows[np.argsort(owner[rows], kind="stable")]
        begins = np.flatnonzero(np.diff(owner[rows], prepend=-1))
        for part in np.split(rows, begins[1:]) if len(rows) else ():
            yield self._convolution(int(owner[part[0]]), part)

    def _convolution(self, operator: int, rows: NDArray[np.intp]) -> _Convolution:
        dies_inside = self._workload.free_ns[rows] <= self._events.end_ns[operator]
        call = self._call(operator)
        results = self._results(call, rows[~dies_inside])
        return _Convolution(operator, call, rows[dies_inside], results)

    def _call(self, operator: int) -> Call | None:
        inputs = self._context.operators.inputs(operator)
        (dtype,) = self._context.operators.first_input_type(np.array([operator]))
        backward = bool(self._backward[operator])
        key = id(inputs), dtype, backward  # rows of inputs that are kept, so that no others get their place
        if key not in self._calls:
            self._calls[key] = inputs, read_call(inputs, dtype, backward=backward)
        return self._calls[key][1]

    @cached_property
    def _backward(self) -> NDArray[np.bool_]:
        return self._context.operators.rows_named({BACKWARD})

    @property
    def settings(self) -> PlannerSettings:
        """The job's settings for cuDNN."""
        operators = self._context.operators
        return settings_of(
            operators.inputs(row) for row in np.flatnonzero(operators.rows_named({FORWARD})).tolist()
        )

    def _results(self, call: Call | None, rows: NDArray[np.intp]) -> tuple[int, ...]:
        """Match results to the blocks left behind: by size where that is clear, otherwise by order."""
        left = rows.tolist()
        if call is None:
            return tuple(left[:1])
        wanted = [size for size in call.results if size is not None]
        found: list[int] = []
        for size in wanted:
            same = [row for row in left if self._workload.size_bytes[row] == size and row not in found]
            found.append(same[0] if same else -1)
        if -1 in found:
            found = left if len(left) == len(wanted) else []
        places = iter(found)
        return tuple(-1 if size is None else next(places, -1) for size in call.results)


class OrderConvolutionBlocks:
    """cuDNN's convolutions allocate their results first; oneDNN's as the last of what they need.

    The output before its workspace; the gradient of the input, its workspace, the gradient of the filter, its
    workspace, the gradient of the bias. Contiguous copies of inputs that have another layout live as long as
    the operator. Whatever else a convolution of the CPU uses inside does not exist. Source:
    `native/cudnn/ConvShared.cpp`, `Convolution.cpp`, 2.1 to 2.13.
    """

    name = "order_convolution_blocks"
    inputs_of = frozenset({FORWARD, BACKWARD})
    description = "convolutions allocate their results before what they need to compute them"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Move results to the beginning of their operator, drop what else it used, add copies of inputs."""
        alloc_ns = workload.alloc_ns.copy()
        kept = np.ones(len(workload), np.bool_)
        begin_ns = context.trace.events.begin_ns
        copies = []
        for found in _Convolutions(workload, context):
            begin = int(begin_ns[found.operator])
            kept[found.inside] = False
            for place, row in enumerate(found.results):
                if row >= 0:
                    alloc_ns[row] = begin + place * _STEP_NS + _RESULT_NS
            if found.call is not None and max(found.results, default=-1) >= 0:
                copies += [
                    _Added(max(found.results), begin, begin + _END_NS, size) for size in found.call.copies
                ]
        moved = workload.with_columns(alloc_ns=alloc_ns)
        added = _added(workload, copies, Category.TEMPORARY)
        return concatenated([added, moved.select(kept)])


class AddConvolutionWorkspaces:
    """cuDNN's plans need a workspace, which PyTorch takes from the caching allocator while a plan runs.

    cuDNN's own heuristics choose the plans for the described GPU (`xmem.cudnn`). PyTorch takes the first one
    whose workspace fits into memory (`Conv_v8.cpp`, 2.1 to 2.13), so the block carries the sizes of the
    others, and the replay decides. With ``torch.backends.cudnn.benchmark`` the first use of a convolution
    also takes the largest workspace of all its plans, to time them.
    """

    name = "add_convolution_workspaces"
    inputs_of = frozenset({FORWARD, BACKWARD})
    description = "convolutions take the workspace of the plan that cuDNN ranks first and that fits"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Add a block for each workspace."""
        planned = plan_convolutions(workload, context)
        if planned is None:
            return workload
        uses, settings, answer = planned
        keys: dict[tuple[ConvolutionProblem, bool], int] = {}
        choices: list[tuple[int, ...]] = []
        blocks = []
        for use in uses:
            timed = settings.benchmark and (use.problem, True) not in keys
            for is_trial in (True, False) if timed else (False,):
                sizes = answer.tried[use.problem]
                if is_trial:
                    sizes = tuple(sorted({*sizes, 0}, reverse=True))
                key = (use.problem, is_trial)
                if not sizes or sizes[0] == 0:
                    keys.setdefault(key, -1)
                    continue
                if key not in keys:
                    keys[key] = len(choices)
                    choices.append(sizes)
                blocks.append(_Added(use.row, use.at_ns, use.at_ns, sizes[0], keys[key]))
        added = _added(workload, blocks, Category.WORKSPACE)
        return concatenated([workload, replace(added, choices=tuple(choices))])


@dataclass(frozen=True)
class Use:
    """A convolution that a plan runs for, the row of its result in the workload, and when it runs."""

    problem: ConvolutionProblem
    row: int
    at_ns: int


def plan_convolutions(
    workload: Workload, context: Context
) -> tuple[list[Use], PlannerSettings, Answer] | None:
    """Return every use of a plan in order of time, the job's settings for cuDNN, and what is known about the
    plans; None where nothing is asked: on a GPU without CUDA, or without convolutions that cuDNN runs.
    """
    if context.target.convolutions is None:
        return None
    convolutions = _Convolutions(workload, context)
    uses = sorted(_uses(convolutions, context.trace.events.begin_ns), key=lambda use: use.at_ns)
    if not uses:
        return None
    settings = convolutions.settings
    problems = tuple(dict.fromkeys(use.problem for use in uses))
    return uses, settings, context.target.convolutions.ask(problems, settings)


def _uses(convolutions: _Convolutions, begin_ns: NDArray[np.int64]) -> Iterator[Use]:
    for found in convolutions:
        somewhere = max(found.results, default=-1)
        if found.call is None or somewhere < 0:
            continue
        for place, problem in enumerate(found.call.problems):
            if problem is not None:
                row = found.results[place] if found.results[place] >= 0 else somewhere
                at_ns = int(begin_ns[found.operator]) + place * _STEP_NS + _WORKSPACE_NS
                yield Use(problem, row, at_ns)


@dataclass(frozen=True)
class _Added:
    """A block that a convolution needs: the result that it serves, and its list of alternative sizes."""

    row: int
    alloc_ns: int
    free_ns: int
    size_bytes: int
    choice: int = -1


def _added(workload: Workload, blocks: Sequence[_Added], category: Category) -> Workload:
    return made_like(
        workload.select(np.array([block.row for block in blocks], np.intp)),
        size_bytes=[block.size_bytes for block in blocks],
        alloc_ns=[block.alloc_ns for block in blocks],
        free_ns=[block.free_ns for block in blocks],
        choice=[block.choice for block in blocks],
        category=category,
    )
