"""Autocast: operators that CUDA computes in float32 where the CPU stays in half precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.orchestration.transients import AddedBlocks
from xmem.run.operators import OperatorIndex
from xmem.run.recorded import Context
from xmem.run.workload import Workload
from xmem.trace.attribution import Category

_HALVES = frozenset({"c10::BFloat16", "c10::Half"})
# On CUDA's float32 list and not on the CPU's. What their backward needs: the input, or the result.
_SAVES_INPUT = frozenset({"aten::layer_norm", "aten::group_norm"})
_SAVES_RESULT = frozenset({"aten::softmax", "aten::log_softmax"})
_BACKWARD = frozenset(
    {
        "aten::native_layer_norm_backward",
        "aten::native_group_norm_backward",
        "aten::_softmax_backward_data",
        "aten::_log_softmax_backward_data",
    }
)
_LOWERED = frozenset(
    {"aten::linear", "aten::matmul", "aten::bmm", "aten::conv1d", "aten::conv2d", "aten::conv3d"}
)


class AddAutocastCopies:
    """Under CUDA's autocast norms and softmax take float32: a copy of the input, the result in float32, and
    what the next matrix product casts back; in the backward the gradient in float32 and its result likewise.
    The CPU's autocast leaves them in half precision, and its block stands for what is cast back.

    For a result of b bytes in half precision: 2 b for the copy, kept until the backward by norms, freed with
    the call by softmax; 2 b for the result, kept until the backward by softmax, and while the next operator
    casts it by norms; 2 b each for the gradient that comes in and for the one that goes out, in the backward.
    Source: the lists of `aten/src/ATen/autocast_mode.h` (2.13) and `.cpp` (2.4); cpu_vs_cuda_memory, section
        10; seen with 2.12.0 on the phantom GPU. Our own captures run CUDA's list on the CPU: nothing is
        changed there. The casts inside its matrix products show whether a trace ran under autocast.
    """

    name = "add_autocast_copies"
    description = "under autocast norms and softmax compute in float32 on CUDA, between copies"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """Add the copies and results in float32; what was recorded comes after them, as the cast back."""
        operators = context.operators
        if context.is_captured or not _casts_for_products(operators):
            return workload
        calls = np.flatnonzero(operators.rows_named(_SAVES_INPUT | _SAVES_RESULT)).astype(np.int32)
        types = operators.first_input_type(calls)
        calls = calls[[kind in _HALVES for kind in types]]
        nodes = np.flatnonzero(operators.rows_named(_BACKWARD)).astype(np.int32)
        recorded_by = operators.enclosing(operators.forward_of(nodes), _marked(operators, calls))
        events = operators.events
        node_of = {int(call): int(node) for call, node in zip(recorded_by, nodes, strict=True) if call >= 0}
        results = _largest_results(workload, operators, calls)
        gradients = _largest_results(workload, operators, nodes[recorded_by >= 0])
        alloc_ns = workload.alloc_ns.copy()
        for made in (results, gradients):
            alloc_ns[list(made.values())] = events.end_ns[list(made)]
        added = AddedBlocks(workload.with_columns(alloc_ns=alloc_ns))
        saves_result = operators.rows_named(_SAVES_RESULT)
        for call, block in results.items():
            end_ns = int(events.end_ns[call])
            node = node_of.get(call)
            kept_ns = int(workload.free_ns[block]) if node is None else int(events.end_ns[node])
            copied_ns, computed_ns = (end_ns, kept_ns) if saves_result[call] else (kept_ns, end_ns + 1)
            size_bytes = 2 * int(workload.size_bytes[block])
            added.add(block, size_bytes, int(events.begin_ns[call]), copied_ns, Category.ACTIVATION)
            added.add(block, size_bytes, int(workload.alloc_ns[block]), computed_ns, Category.ACTIVATION)
        for node, block in gradients.items():
            begin_ns, end_ns = int(events.begin_ns[node]), int(events.end_ns[node])
            size_bytes = 2 * int(workload.size_bytes[block])
            added.add(block, size_bytes, begin_ns, end_ns, Category.TEMPORARY)
            added.add(block, size_bytes, int(workload.alloc_ns[block]), end_ns + 1, Category.TEMPORARY)
        return added.added()


def _casts_for_products(operators: OperatorIndex) -> bool:
    """Return whether a matrix product or convolution casts its inputs, as autocast makes it do."""
    casts = np.flatnonzero(operators.rows_named({"aten::to"}))
    parents = operators.parent[casts]
    lowered = operators.rows_named(_LOWERED)
    return bool(lowered[parents[parents >= 0]].any())


def _marked(operators: OperatorIndex, rows: NDArray[np.int32]) -> NDArray[np.bool_]:
    marked = np.zeros(len(operators.events), np.bool_)
    marked[rows] = True
    return marked


def _largest_results(workload: Workload, operators: OperatorIndex, rows: NDArray[np.int32]) -> dict[int, int]:
    """Return by operator the largest block that it makes and that outlives it, as a row of the workload."""
    owner = operators.rows_owned_by(workload.operator, rows)
    owned = np.flatnonzero(owner >= 0)
    owned = owned[workload.free_ns[owned] > operators.events.end_ns[rows[owner[owned]]]]
    largest: dict[int, int] = {}
    for block in owned.tolist():
        call = int(rows[owner[block]])
        if call not in largest or workload.size_bytes[block] > workload.size_bytes[largest[call]]:
            largest[call] = block
    return largest
