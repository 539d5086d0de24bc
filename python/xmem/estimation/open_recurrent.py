"""What an estimate of a run on the CPU leaves open of recurrent layers: what it keeps there instead."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xmem.orchestration.recurrent.cudnn_layers import cells_by_steps, recurrent_calls, unmodelled_calls
from xmem.orchestration.recurrent.recurrent_spaces import reserve_bytes, work_bytes
from xmem.run.operators import OperatorIndex
from xmem.run.recorded import Recorded
from xmem.run.workload import Workload
from xmem.simulation.replay import Replay, Requests


def open_of_recurrent_layers(
    recorded: Recorded,
    workload: Workload,
    requests: Requests,
    replay: Replay,
    capability: tuple[int, int],
) -> tuple[int, int]:
    """Return how far below and above the estimate the peak may lie, in bytes; zeros where all is known.

    Of calls that no policy replaces, and of cells, which CUDA computes in one kernel each, the estimate has
    what the CPU keeps: in truth it may be nothing, or twice as much. Calls of cuDNN in bfloat16 add what
    those of one iteration keep by the formulas, on a GPU of this compute capability.
    """
    if not recorded.origin.on_cpu:
        return 0, 0
    operators, peak = recorded.operators, replay.peak_allocated.request
    rows = np.array([row for row, call in recurrent_calls(operators).items() if call is None], np.int32)
    rows = np.concatenate([rows, cells_by_steps(operators)])
    if len(rows) == 0 or peak < 0:
        return 0, 0
    at_ns = requests.time_ns[peak]
    there = (workload.alloc_ns <= at_ns) & (workload.free_ns > at_ns)
    operator = workload.operator[there]
    theirs = operators.rows_owned_by(operator, rows) >= 0
    theirs |= operators.rows_owned_by(operators.forward_of(operator), rows) >= 0
    held_bytes = int(workload.size_bytes[there][theirs].sum())
    calls = unmodelled_calls(operators)
    iterations = max(recorded.attribution.optimizer_steps, 1)
    works = (work_bytes(call, capability) for call in calls)  # without persistent kernels, in either pass
    kept_bytes = sum(map(reserve_bytes, calls)) // iterations + max(works, default=0)
    return held_bytes, held_bytes + kept_bytes


def notes_on_recurrent_layers(operators: OperatorIndex) -> Iterator[str]:
    """Describe the uncertainty of recurrent layers for a run on the CPU."""
    if len(cells_by_steps(operators)):
        yield "cells of LSTMs and GRUs are counted as on the CPU; CUDA's differ, which widens the interval"
    known = [call is not None for call in recurrent_calls(operators).values()]
    if any(known):
        yield "the workspaces of recurrent layers follow a formula fitted to cuDNN's answers"
    if not all(known):
        yield (
            "what cuDNN keeps for recurrent layers without recorded shapes, or in bfloat16, is not counted; "
            "what the CPU keeps is counted instead, and the interval is wider"
        )
