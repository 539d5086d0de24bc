"""Gradients cleared elsewhere in the loop, or set to zero instead of being freed."""

from __future__ import annotations

import numpy as np

from xmem.errors import ConfigError
from xmem.orchestration.optimizer.optimizer_steps import Parameter
from xmem.records import dataclass
from xmem.trace.attribution import Category
from xmem.trace.blocks import NEVER
from xmem.whatif.changed_run import ChangedRun
from xmem.whatif.gradients import Arrival, arrivals, in_flight

_PLACES = ("iteration_start", "before_forward", "before_backward", "after_step")


@dataclass(frozen=True)
class ZeroGrad:
    """``zero_grad=PLACE``: gradients end there, in the order of the optimizer.

    Places are right after the step (``after_step``; to the allocator the same as ``iteration_start``, the
    first statement of the next iteration), before the first module is called (``before_forward``), and before
    ``loss.backward()`` (``before_backward``). The gradients must be freed (``set_to_none=True``).
    """

    text: str
    place: str

    def __call__(self, run: ChangedRun) -> ChangedRun:
        """Move the ends of the gradients of every step."""
        for index in range(len(run.steps)):
            ends_ns = self._ends_ns(run, index)
            if ends_ns is None:
                continue
            parameters = run.parameters(run.steps[index])
            if index + 1 < len(run.steps):
                _require_let_go(run, parameters, run.parameters(run.steps[index + 1]))
            run = _ended(run, [parameter.gradient for parameter in parameters], ends_ns)
        return run

    def _ends_ns(self, run: ChangedRun, index: int) -> int | None:
        """Return when the gradients of a step end, None after the end of the run."""
        if index + 1 == len(run.steps):
            return None
        if self.place in ("after_step", "iteration_start"):
            return run.steps[index].end_ns
        return (
            run.forwards[index + 1] if self.place == "before_forward" else run.backwards[index + 1].begin_ns
        )


@dataclass(frozen=True)
class SetToNone:
    """``set_to_none=true`` or ``false``.

    False: the gradients of the first step stay; those of later backward passes are added to them, node by
    node, and freed. True: conversely, gradients end at the recorded ``zero_grad``.
    """

    text: str
    lets_go: bool

    def __call__(self, run: ChangedRun) -> ChangedRun:
        """Keep gradients or free them."""
        return _let_go(run) if self.lets_go else _keep(run)


def parse_zero_grad(text: str, value: str) -> ZeroGrad:
    """Read a place.

    Raises:
        ConfigError: There is no such place.
    """
    if value not in _PLACES:
        raise ConfigError(f"unknown place {value!r} in --what-if {text}", f"use one of {', '.join(_PLACES)}")
    return ZeroGrad(text, value)


def parse_set_to_none(text: str, value: str) -> SetToNone:
    """Read ``true`` or ``false``.

    Raises:
        ConfigError: The text is neither.
    """
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"--what-if {text} is invalid", "use set_to_none=true or set_to_none=false")
    return SetToNone(text, value.lower() == "true")


def _require_let_go(run: ChangedRun, before: list[Parameter], after: list[Parameter]) -> None:
    if {each.gradient for each in before} & {each.gradient for each in after}:
        raise run.refusal("gradients outlive their iteration; put set_to_none=true before zero_grad")


def _keep(run: ChangedRun) -> ChangedRun:
    kept: dict[str, int] = {}
    free_ns, category, tensor = (
        run.workload.free_ns.copy(),
        run.workload.category.copy(),
        run.workload.tensor.copy(),
    )
    vanished = np.zeros(len(run.workload), np.bool_)
    for step, backward in zip(run.steps, run.backwards, strict=True):
        parameters = run.parameters(step)
        later = [each for each in parameters if kept.get(each.name, each.gradient) != each.gradient]
        rows, ends_ns = in_flight(run, arrivals(run, backward, later))
        free_ns[rows], category[rows], tensor[rows] = ends_ns, Category.TEMPORARY, -1
        vanished[rows] = ends_ns <= run.workload.alloc_ns[rows]
        for parameter in parameters:
            kept.setdefault(parameter.name, parameter.gradient)
    free_ns[list(kept.values())] = NEVER
    workload = run.workload.with_columns(free_ns=free_ns, category=category, tensor=tensor)
    return run.with_workload(workload.select(~vanished | (workload.free_ns == NEVER)))


def _let_go(run: ChangedRun) -> ChangedRun:
    steps = run.steps
    parameters = [run.parameters(step) for step in steps]
    kept = [each.gradient for each in parameters[0]]
    if len(steps) < 2 or not set(kept) & {each.gradient for each in parameters[1]}:
        return run  # they are freed already
    place = {each.gradient: index for index, each in enumerate(parameters[0])}
    order = sorted(
        arrivals(run, run.backwards[0], parameters[0]), key=lambda each: place[each.parameter.gradient]
    )
    if len(order) != len(kept):
        raise run.refusal("gradients are older than its first iteration")
    rows = [kept, *(_arrived(run, index, order) for index in range(1, len(steps)))]
    category, tensor, free_ns = (
        run.workload.category.copy(),
        run.workload.tensor.copy(),
        run.workload.free_ns.copy(),
    )
    for arrived in rows[1:]:
        category[arrived] = Category.GRADIENT
        tensor[arrived] = run.workload.tensor[kept]
        free_ns[arrived] = NEVER
    run = run.with_workload(run.workload.with_columns(category=category, tensor=tensor, free_ns=free_ns))
    for index, gradients in enumerate(rows[:-1]):
        run = _ended(run, gradients, _cleared_ns(run, index))
    return run


def _arrived(run: ChangedRun, index: int, order: list[Arrival]) -> list[int]:
    """Return the rows that the backward pass before a step adds to gradients, in the given order."""
    workload = run.workload
    first = [node for name, node in run.engine_nodes(run.backwards[0]) if name.endswith("AccumulateGrad")]
    nodes = [node for name, node in run.engine_nodes(run.backwards[index]) if name.endswith("AccumulateGrad")]
    if len(nodes) != len(first):
        raise run.refusal(f"the backward passes of iterations 0 and {index} differ")
    found = []
    for arrival in order:
        node = nodes[first.index(arrival.node)]
        ended = (workload.free_ns >= node.begin_ns) & (workload.free_ns <= node.end_ns)
        came_in = ended & (workload.size_bytes == arrival.parameter.size_bytes)
        candidates = np.flatnonzero(came_in & (workload.alloc_ns < node.begin_ns))
        if len(candidates) == 0:
            raise run.refusal(
                f"what is added to the gradient of {arrival.parameter.name} has no block of its own"
            )
        found.append(int(candidates[-1]))
    return found


def _cleared_ns(run: ChangedRun, index: int) -> int:
    """Return when the script sets the gradients of a step to zero."""
    begin_ns, end_ns = run.steps[index].end_ns, run.steps[index + 1].begin_ns
    cleared = [clear.begin_ns for clear in run.clears if begin_ns <= clear.begin_ns < end_ns]
    if not cleared:
        raise run.refusal("it has no zero_grad of the optimizer between two steps")
    return cleared[0]


def _ended(run: ChangedRun, rows: list[int], at_ns: int) -> ChangedRun:
    """End blocks at a time, one after the other; the run waits for it."""
    free_ns = run.workload.free_ns.copy()
    free_ns[rows] = NEVER  # they do not move with the room
    run = run.with_workload(run.workload.with_columns(free_ns=free_ns)).with_room(at_ns, len(rows))
    free_ns = run.workload.free_ns.copy()
    free_ns[rows] = at_ns + np.arange(len(rows))
    return run.with_workload(run.workload.with_columns(free_ns=free_ns))
