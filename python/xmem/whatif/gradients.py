"""Matching of gradients with the nodes of the backward pass that accumulate them.

`AccumulateGrad` takes a first gradient as it comes, or copies it, and adds later ones to it and frees them
(`torch/csrc/autograd/functions/accumulate_grad.h`). The profiler does not say whose gradient a node handles.
The engine runs these nodes as soon as they are ready, so a gradient is handled right after the node that
computed it; that of a matrix that the forward had transposed, only after it was transposed back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xmem.orchestration.optimizer.optimizer_steps import Parameter
from xmem.records import dataclass
from xmem.whatif.changed_run import ChangedRun, Span

_VIEWS = ("TBackward", "TransposeBackward", "PermuteBackward", "ViewBackward", "ReshapeAliasBackward")


@dataclass(frozen=True)
class Arrival:
    """A gradient and the node that accumulates it.

    Attributes:
        parameter: Parameter of the gradient, with its row in the workload.
        node: The node of the engine.
        copied: Whether the node made the gradient's block, as a copy of its input.
    """

    parameter: Parameter
    node: Span
    copied: bool


def arrivals(run: ChangedRun, backward: Span, parameters: Sequence[Parameter]) -> list[Arrival]:
    """Return the gradients that a backward pass makes, in the order in which they arrive.

    Args:
        run: The run.
        backward: A backward pass.
        parameters: Parameters with gradients at the step that follows; those whose gradients the pass did
            not allocate are left out.

    Raises:
        TraceError: Nodes and gradients do not match.
    """
    born = run.workload.alloc_ns
    left = sorted(
        (each for each in parameters if backward.begin_ns <= born[each.gradient] < backward.end_ns),
        key=lambda each: int(born[each.gradient]),
    )
    found = []
    before: tuple[str, Span] | None = None  # the last node that computed something
    for name, node in run.engine_nodes(backward):
        if not name.endswith("AccumulateGrad"):
            before = (name, node)
            continue
        ready = [each for each in left if born[each.gradient] < node.end_ns]
        if not ready:
            continue  # gradient of a parameter that no optimizer has
        chosen = _handled(run, node, ready, before)
        left.remove(chosen)
        found.append(Arrival(chosen, node, bool(born[chosen.gradient] >= node.begin_ns)))
    if left:
        raise run.refusal(f"none of its nodes sets the gradient of {left[0].name}")
    return found


def _handled(
    run: ChangedRun,
    node: Span,
    ready: Sequence[Parameter],
    before: tuple[str, Span] | None,
) -> Parameter:
    """Return the gradient, of those computed so far, that a node accumulates."""
    born = run.workload.alloc_ns
    copied = [each for each in ready if born[each.gradient] >= node.begin_ns]
    if copied:
        return copied[0]
    if before is None:
        return ready[0]
    if _is_view(before[0]):
        return max(ready, key=lambda each: (_rank(each) > 1, int(born[each.gradient])))
    computed = before[1]
    own = [each for each in ready if computed.begin_ns <= born[each.gradient] < computed.end_ns]
    # as the operator's arguments: (bias, input, weight) of addmm, (input, weight, bias) of convolution
    weights_first = "ConvolutionBackward" in before[0]
    return min(own or ready, key=lambda each: ((_rank(each) > 1) != weights_first, int(born[each.gradient])))


def _is_view(name: str) -> bool:
    return name.rpartition(": ")[2].rstrip("0123456789") in _VIEWS


def _rank(parameter: Parameter) -> int:
    return len(parameter.shape or ())


def in_flight(run: ChangedRun, found: Sequence[Arrival]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the fate of the blocks of arriving gradients when there is a gradient to add them to.

    Returns:
        int64 [n] rows of the workload, and int64 [n] nanoseconds at which they end; a block that a node
        made as a copy ends when it begins, because it would not be made.
    """
    rows = np.array([each.parameter.gradient for each in found], np.int64)
    born = run.workload.alloc_ns
    ends = [int(born[each.parameter.gradient]) if each.copied else each.node.end_ns - 1 for each in found]
    return rows, np.array(ends, np.int64)
