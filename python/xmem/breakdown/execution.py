"""Module and source line that ran at each request of an iteration.

A request made by autograd's engine belongs to the forward operator whose backward runs; any other to the
innermost module and line at its time. They are not the owners of the memory (``holders``): a module's
backward frees what its forward has saved.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.estimation.analysis import Analysis, Stages
from xmem.estimation.holders import iteration_begins
from xmem.estimation.shown_lines import shown_line
from xmem.records import dataclass
from xmem.run.operators import ANNOTATION, OperatorIndex, covered
from xmem.trace.attribution import Phase
from xmem.trace.trace import SPAN_KINDS, Trace
from xmem.whatif.module_calls import module_calls

_LINE = SPAN_KINDS.index("line")
_OPTIMIZER_PHASES = {"Optimizer.zero_grad#": Phase.ZERO_GRAD, "Optimizer.step#": Phase.OPTIMIZER_STEP}

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Delta:
    """Change of the memory in bytes: allocated minus freed."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0

    def __add__(self, other: Delta) -> Delta:
        return Delta(self.allocated_bytes + other.allocated_bytes, self.reserved_bytes + other.reserved_bytes)


@dataclass(frozen=True)
class Execution:
    """One entry per request of the iteration; indices into the lists of names, -1 = none.

    Attributes:
        module: intp, index into ``modules``: the innermost module that ran.
        line: intp, index into ``lines``.
        phase: uint8, an ``attribution.Phase``: ``BACKWARD`` for requests of autograd's engine, then the
            phases of the optimizer, else ``FORWARD``.
        allocated_bytes: int64, change of the allocated bytes by the request.
        reserved_bytes: int64, change of the reserved bytes by the request.
        modules: Module paths.
        lines: Source lines, ``PATH:LINE``.
    """

    module: NDArray[np.intp]
    line: NDArray[np.intp]
    phase: NDArray[np.uint8]
    allocated_bytes: Int64
    reserved_bytes: Int64
    modules: list[str]
    lines: list[str]


def execution_of(analysis: Analysis) -> Execution | None:
    """Return what ran in the iteration of the peak, or in the last one if the peak is outside of all.

    Return None for a run that a what-if has changed, since its clock is not the trace's.
    """
    stages = analysis.stages
    begins = iteration_begins(stages.workload)
    if stages.what_if or len(begins) == 0:
        return None
    number = analysis.estimate.peak.iteration
    number = number if number >= 0 else len(begins) - 1
    window = np.searchsorted(stages.requests.time_ns, begins[number : number + 2])
    requests = np.arange(window[0], window[1] if len(window) > 1 else len(stages.requests))
    asked_ns = stages.requests.time_ns[requests]
    times, backward = _forward_times(stages.trace, asked_ns)
    phase = np.where(backward, Phase.BACKWARD, _phases_outside_of_the_engine(stages.trace, asked_ns))
    module, modules = _modules_at(stages, times)
    line, lines = _lines_at(stages.trace, times, analysis.show_packages)
    timeline = analysis.replay.timeline
    return Execution(
        module=module,
        line=line,
        phase=phase.astype(np.uint8),
        allocated_bytes=_changes(timeline.allocated_bytes, requests),
        reserved_bytes=_changes(timeline.reserved_bytes, requests),
        modules=modules,
        lines=lines,
    )


def _changes(gauge: Int64, requests: Int64) -> Int64:
    changes: Int64 = np.diff(gauge, prepend=0)[requests]
    return changes


def _forward_times(trace: Trace, times: Int64) -> tuple[Int64, NDArray[np.bool_]]:
    """Replace times in the backward pass by those of the forward operators (-1 = unknown); keep others."""
    operators, events = OperatorIndex(trace), trace.events
    nodes = operators.evaluations.copy()
    if len(times):
        nodes &= (events.end_ns > times[0]) & (events.begin_ns <= times[-1])
    rows = np.flatnonzero(nodes).astype(np.int32)
    at = innermost(events.begin_ns[rows], events.end_ns[rows], times)
    backward = at >= 0
    forward = operators.forward_of(rows)
    known = np.append(np.where(forward >= 0, events.begin_ns[forward], -1), -1)
    return np.where(backward, known[at], times), backward


def _phases_outside_of_the_engine(trace: Trace, times: Int64) -> NDArray[np.int64]:
    operators, events = OperatorIndex(trace), trace.events
    phase = np.full(len(times), Phase.FORWARD, np.int64)
    for prefix, other in _OPTIMIZER_PHASES.items():

        def is_of(name: str, prefix: str = prefix) -> bool:
            return name.startswith(prefix)

        rows = np.flatnonzero(operators.rows_named(is_of, ANNOTATION))
        phase[covered(times, events.begin_ns[rows], events.end_ns[rows])] = other
    return phase


def _modules_at(stages: Stages, times: Int64) -> tuple[NDArray[np.intp], list[str]]:
    events = stages.trace.events
    calls = module_calls(stages.recorded)
    rows = np.array([call.row for call in calls], np.intp)
    at = innermost(events.begin_ns[rows], events.end_ns[rows], times)
    return _numbered(at, [call.path for call in calls])


def _lines_at(trace: Trace, times: Int64, show_packages: bool) -> tuple[NDArray[np.intp], list[str]]:
    events = trace.events
    rows = _overlapping(trace, np.flatnonzero(events.kind == _LINE), times)
    at = innermost(events.begin_ns[rows], events.end_ns[rows], times)
    shown = shown_line(trace, show_packages=show_packages)
    known = {name: shown(trace.names[name]) for name in set(events.name[rows].tolist())}
    return _numbered(at, [known[name] for name in events.name[rows].tolist()])


def _overlapping(trace: Trace, rows: NDArray[np.intp], times: Int64) -> NDArray[np.intp]:
    """Return the spans that may contain one of the times."""
    known, events = times[times >= 0], trace.events
    first, last = known.min(initial=np.iinfo(np.int64).max), known.max(initial=-1)
    found: NDArray[np.intp] = rows[(events.end_ns[rows] > first) & (events.begin_ns[rows] <= last)]
    return found


def _numbered(at: NDArray[np.intp], names: list[str]) -> tuple[NDArray[np.intp], list[str]]:
    """Convert indices of spans to indices of their names, each name once; an empty name counts as none."""
    ids: dict[str, int] = {}
    of_span = [ids.setdefault(name, len(ids)) if name else -1 for name in names]
    return np.array([*of_span, -1], np.intp)[at], list(ids)


def enclosing_spans(begins: Int64, ends: Int64) -> NDArray[np.intp]:
    """Return for each of the nested spans the innermost other that encloses it, -1 = none."""
    order = np.lexsort((-ends, begins))
    found = np.full(len(begins), -1, np.intp)
    open_: list[tuple[int, int]] = []  # (end, span)
    for span, begin, end in zip(order.tolist(), begins[order].tolist(), ends[order].tolist(), strict=True):
        while open_ and open_[-1][0] <= begin:
            open_.pop()
        if open_:
            found[span] = open_[-1][1]
        open_.append((end, span))
    return found


def innermost(begins: Int64, ends: Int64, times: Int64) -> NDArray[np.intp]:
    """Return for each time the innermost of the nested spans [begin, end) that contains it, -1 = none."""
    if len(begins) == 0:
        return np.full(len(times), -1, np.intp)
    parents = enclosing_spans(begins, ends)
    order = np.lexsort((-ends, begins))
    found: NDArray[np.intp] = np.append(order, -1)[np.searchsorted(begins[order], times, side="right") - 1]
    while (ended := (found >= 0) & (ends[found] <= times)).any():
        found[ended] = parents[found[ended]]
    return found
