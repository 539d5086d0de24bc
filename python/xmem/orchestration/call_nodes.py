"""Calls of one operator, and what autograd's engine runs for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.run.operators import OPERATOR
from xmem.run.recorded import Context

_ENGINE = "autograd::engine::evaluate_function"


def rows_by_event(event: NDArray[np.int32]) -> dict[int, NDArray[np.intp]]:
    """Return the rows of the workload by the event that holds them, without -1."""
    rows = np.argsort(event, kind="stable")
    rows = rows[event[rows] >= 0]
    found, starts = np.unique(event[rows], return_index=True)
    return dict(zip(found.tolist(), np.split(rows, starts[1:]), strict=True)) if len(found) else {}


def nodes_of_calls(calls: NDArray[np.intp], context: Context) -> list[NDArray[np.intp]]:
    """Return for each call the engine's spans of the nodes that it made, in order.

    An operator is given the number of the next node to be made: those from the call's own number up to that
    of the first operator behind it are the call's.
    """
    events = context.trace.events
    numbered = (events.kind == OPERATOR) & (events.sequence_number >= 0)
    forward = np.flatnonzero(numbered & (events.forward_thread <= 0))
    engine = np.flatnonzero(numbered & context.operators.rows_named(lambda name: name.startswith(_ENGINE)))
    found = []
    for call in calls.tolist():
        first, end_ns = int(events.sequence_number[call]), int(events.end_ns[call])
        own_thread = forward[events.thread[forward] == events.thread[call]]
        behind = int(np.searchsorted(events.begin_ns[own_thread], end_ns))
        stop = events.sequence_number[own_thread[behind]] if behind < len(own_thread) else np.inf
        numbers = events.sequence_number[engine]
        rows = engine[(numbers >= max(first, 0)) & (numbers < stop) & (events.begin_ns[engine] >= end_ns)]
        rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
        _, first_pass = np.unique(events.sequence_number[rows], return_index=True)
        found.append(rows[np.sort(first_pass)] if first >= 0 else rows[:0])
    return found
