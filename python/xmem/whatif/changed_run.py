"""A recorded run that what-ifs change: its blocks, and a clock that makes room for more.

A what-if puts memory where the recorded run had none: it opens a gap in the run's clock and fills it. Only
the order of times matters from here on, so a nanosecond is as good as the real duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from xmem.devices.description import Device
from xmem.errors import ConfigError, TraceError
from xmem.orchestration.optimizer.optimizer_steps import Parameter
from xmem.records import dataclass
from xmem.run.operators import ANNOTATION, OPERATOR
from xmem.run.recorded import Recorded
from xmem.run.workload import Workload, concatenated, made_by_policy
from xmem.trace.attribution import Category, Phase
from xmem.trace.blocks import NEVER
from xmem.trace.trace import SPAN_KINDS

_MODULE = SPAN_KINDS.index("module")


class WhatIf(Protocol):
    """A change of the script, as a pure function on its run."""

    @property
    def text(self) -> str:
        """The change as the user spells it, such as ``optimizer=adamw:fused``."""

    def __call__(self, run: ChangedRun, /) -> ChangedRun:
        """Return the run as it would be with the change.

        Raises:
            TraceError: The trace lacks information that the change needs.
            ConfigError: The change cannot follow the changes made before it.
        """


@dataclass(frozen=True)
class Span:
    """Begin and end in nanoseconds on the run's clock, half-open."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class ChangedRun:
    """The run as changed so far.

    Attributes:
        workload: Its blocks, after all policies, times on the run's clock.
        recorded: The recording; times on the trace's clock, which ``clock`` translates.
        device: The GPU in question, None if none is named.
        gaps: Places where room was made: times of the trace from which on the run's clock is ahead, and by
            how many nanoseconds in total, ascending.
        accumulated: Whether its forward and backward passes were repeated; the trace has only the first.
    """

    workload: Workload
    recorded: Recorded
    device: Device | None = None
    gaps: tuple[tuple[int, int], ...] = ()
    accumulated: bool = False

    def clock(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Translate times of the trace to the run's clock."""
        starts = np.array([start for start, _ in self.gaps], np.int64)
        ahead = np.array([0, *(total for _, total in self.gaps)], np.int64)
        return times_ns + ahead[np.searchsorted(starts, times_ns, side="right")]

    def with_workload(self, workload: Workload) -> ChangedRun:
        """Return the same run with other blocks."""
        return replace(self, workload=workload)

    def with_room(self, at_ns: int, room_ns: int) -> ChangedRun:
        """Open a gap: everything at ``at_ns`` or later happens ``room_ns`` later."""
        return self.with_rooms([(at_ns, room_ns)])

    def with_rooms(self, rooms: Sequence[tuple[int, int]]) -> ChangedRun:
        """Open gaps: pairs of a time, before any is opened, and of the delay of everything after it."""
        rooms = sorted(rooms)
        starts = np.array([at_ns for at_ns, _ in rooms], np.int64)
        ahead = np.cumsum([0, *(room_ns for _, room_ns in rooms)])
        workload = self.workload

        def moved(times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
            later: NDArray[np.int64] = times_ns + ahead[np.searchsorted(starts, times_ns, side="right")]
            return later

        free_ns = np.where(workload.free_ns == NEVER, NEVER, moved(np.minimum(workload.free_ns, NEVER >> 1)))
        gaps = self.gaps
        for at_ns, room_ns in reversed(rooms):  # the last first: it does not move anything before it
            gaps = _with_gap(gaps, at_ns, room_ns)
        return replace(
            self,
            workload=workload.with_columns(alloc_ns=moved(workload.alloc_ns), free_ns=free_ns),
            gaps=gaps,
        )

    def with_blocks(self, **columns: NDArray[Any]) -> ChangedRun:
        """Add blocks, before others of the same time; columns not given count as unknown."""
        added = made_by_policy(len(columns["size_bytes"]), **columns)
        return self.with_workload(concatenated([added, self.workload]))

    @cached_property
    def steps(self) -> list[Span]:
        """Steps of the optimizer.

        Raises:
            TraceError: There are no steps, more than one optimizer makes them, or they call a closure.
        """
        optimizers = self.recorded.notes.optimizers
        if len(optimizers) > 1:
            names = ", ".join(optimizer.name for optimizer in optimizers)
            raise self.refusal(f"the script has several optimizers ({names})")
        spans = self._spans(lambda name: name.startswith("Optimizer.step#"), ANNOTATION)
        outermost: list[Span] = []
        for span in spans:
            if not outermost or span.begin_ns >= outermost[-1].end_ns:
                outermost.append(span)
        if not outermost:
            raise self.refusal("it has no optimizer step (Optimizer.step#...)")
        if any(self.engine_nodes(step) for step in outermost):
            raise self.refusal("a backward pass runs inside an optimizer step (a closure)")
        return outermost

    @cached_property
    def clears(self) -> list[Span]:
        """Calls of the optimizer's ``zero_grad``."""
        return self._spans(lambda name: name.startswith("Optimizer.zero_grad#"), ANNOTATION)

    @cached_property
    def backwards(self) -> list[Span]:
        """The backward pass before each step, from the gradient of the loss on.

        Raises:
            TraceError: A step has no backward pass.
        """
        nodes = [node for _, node in self._engine_nodes]
        seeds = self._spans(lambda name: name == "aten::ones_like", OPERATOR)
        found, after_ns = [], -1
        for step in self.steps:
            own = [node for node in nodes if after_ns <= node.begin_ns < step.begin_ns]
            if not own:
                raise self.refusal("an optimizer step has no backward pass before it")
            begin_ns = own[0].begin_ns
            seed = max((seed.begin_ns for seed in seeds if seed.end_ns <= begin_ns), default=-1)
            rows = self.workload.alloc_ns
            between = self.workload.phase[(rows >= seed) & (rows < begin_ns)]
            if seed > after_ns and len(between) <= 1:
                begin_ns = seed
            found.append(Span(begin_ns, max(node.end_ns for node in own)))
            after_ns = step.end_ns
        return found

    @cached_property
    def forwards(self) -> list[int]:
        """Times when the first module before each step is called."""
        return [begin for begin, _ in self._starts]

    @cached_property
    def micro_batches(self) -> list[Span]:
        """Forward and backward before each step, from the arrival of the batch on."""
        return [
            Span(arrives, backward.end_ns)
            for (_, arrives), backward in zip(self._starts, self.backwards, strict=True)
        ]

    @cached_property
    def _starts(self) -> list[tuple[int, int]]:
        modules = np.array([span.begin_ns for span in self._spans(lambda _: True, _MODULE)], np.int64)
        inputs = self.workload.alloc_ns[self.workload.category == Category.INPUT]
        first = self.workload.alloc_ns[self.workload.phase == Phase.FORWARD]
        found, after_ns = [], -1
        for step, backward in zip(self.steps, self.backwards, strict=True):

            def between(
                times: NDArray[np.int64], begin: int = after_ns, end: int = backward.begin_ns
            ) -> NDArray[np.int64]:
                return times[(times >= begin) & (times < end)]

            called = between(modules) if len(modules) else between(first)
            if len(called) == 0:
                raise self.refusal("an optimizer step has no forward pass before it")
            begin_ns = int(called.min())
            arrived = between(inputs)
            found.append((begin_ns, min([begin_ns, *arrived.tolist()])))
            after_ns = step.end_ns
        return found

    def parameters(self, step: Span) -> list[Parameter]:
        """Return the parameters that have a gradient when a step begins, in the order of the optimizer.

        Raises:
            TraceError: The trace names no parameters or gradients, or gradients are parts of larger blocks.
        """
        workload = self.workload
        known = self.named_gradients
        alive = (workload.alloc_ns <= step.begin_ns) & (workload.free_ns > step.begin_ns)
        found = []
        for row in np.flatnonzero(alive & (workload.tensor >= 0)).tolist():
            if (tensor := int(workload.tensor[row])) in known:
                place, recorded = known[tensor]
                size_bytes = int(workload.size_bytes[row])
                # half of the size: another what-if has changed its dtype
                alike = size_bytes in (recorded.size_bytes, recorded.size_bytes // 2)
                shape = recorded.shape if alike else None
                parameter = replace(recorded, gradient=row, size_bytes=size_bytes, shape=shape)
                found.append((place, parameter))
        if not found:
            raise self.refusal("no gradients are alive when its optimizer steps")
        found.sort(key=lambda entry: (entry[1].group, entry[0]))
        return [parameter for _, parameter in found]

    @cached_property
    def named_gradients(self) -> dict[int, tuple[int, Parameter]]:
        """Gradients by row of the capture's tensors: place in the optimizer, and the parameter.

        Raises:
            TraceError: The trace names no parameters or gradients, or gradients are parts of larger blocks.
        """
        tensors = self.recorded.notes.tensors
        if not tensors.role:
            raise self.refusal(
                "it does not name parameters and gradients; record it with: "
                "xmem-fast capture -o trace.json.gz -- python train.py"
            )
        if tensors.group is None or tensors.shape is None or not tensors.dtype:
            raise self.refusal("it does not hold dtypes, shapes and parameter groups; capture again")
        parameters: dict[str, int] = {}
        order: dict[str, int] = {}
        for row, (role, name) in enumerate(zip(tensors.role, tensors.name, strict=True)):
            if role == "parameter":
                parameters[name] = row  # the last one: after the model has moved
            elif role == "gradient":
                order.setdefault(name, len(order))
        found = {}
        for row, (role, name) in enumerate(zip(tensors.role, tensors.name, strict=True)):
            if role == "gradient" and name in parameters:
                at = parameters[name]
                if tensors.size_bytes[row] > tensors.size_bytes[at]:
                    raise self.refusal(f"the gradient of {name} is part of a larger block")
                parameter = Parameter(
                    name=name,
                    shape=tuple(tensors.shape[at]),
                    size_bytes=int(tensors.size_bytes[at]),
                    dtype=tensors.dtype[at],
                    group=int(tensors.group[row]),
                    gradient=-1,
                )
                found[row] = (order[name], parameter)
        return found

    def engine_nodes(self, span: Span) -> list[tuple[str, Span]]:
        """Return name and time of the autograd engine's nodes that begin within a span."""
        return [
            (name, node) for name, node in self._engine_nodes if span.begin_ns <= node.begin_ns < span.end_ns
        ]

    @cached_property
    def _engine_nodes(self) -> list[tuple[str, Span]]:
        events, names = self.recorded.trace.events, self.recorded.trace.names
        rows = np.flatnonzero(self.recorded.operators.rows_named(is_engine_node))
        begins, ends = self.clock(events.begin_ns[rows]), self.clock(events.end_ns[rows])
        return [
            (names[int(events.name[rows[at]])], Span(int(begins[at]), int(ends[at])))
            for at in np.argsort(begins, kind="stable")
        ]

    def require_not_accumulated(self, text: str) -> None:
        """Refuse a what-if that needs to know every forward pass.

        Raises:
            ConfigError: Forward and backward passes were repeated.
        """
        if self.accumulated:
            name = text.partition("=")[0]
            raise ConfigError(
                f"--what-if {text} cannot come after accumulate", f"put {name} first, then accumulate"
            )

    def refusal(self, reason: str) -> TraceError:
        """Return the error that explains why a what-if cannot be applied."""
        return TraceError(f"the what-if cannot be applied to this trace: {reason}", self.recorded.trace.path)

    def _spans(self, wanted: Any, kind: int) -> list[Span]:
        events = self.recorded.trace.events
        rows = self.recorded.operators.rows_named(wanted, kind)
        begins, ends = self.clock(events.begin_ns[rows]), self.clock(events.end_ns[rows])
        order = np.argsort(begins, kind="stable")
        return [Span(*times) for times in zip(begins[order].tolist(), ends[order].tolist(), strict=True)]


def _with_gap(gaps: tuple[tuple[int, int], ...], at_ns: int, room_ns: int) -> tuple[tuple[int, int], ...]:
    """Return the gaps of a run (``ChangedRun.gaps``) with one more, at a time of the run's clock."""
    found, before = [], 0
    for start, total in gaps:
        if start + before >= at_ns:
            break
        found.append((start, total))
        before = total
    at_trace_ns = max(at_ns - before, found[-1][0] if found else at_ns - before)
    later = gaps[len(found) :]
    return (*found, (at_trace_ns, before + room_ns), *((start, total + room_ns) for start, total in later))


def is_engine_node(name: str) -> bool:
    """Return whether an operator is a node that autograd's engine runs."""
    return name.startswith("autograd::engine::evaluate_function")
