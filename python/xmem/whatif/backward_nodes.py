"""The autograd engine's nodes, each with the forward operator that recorded it."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xmem.records import dataclass
from xmem.trace.trace import SPAN_KINDS
from xmem.whatif.changed_run import ChangedRun, is_engine_node

_LINE = SPAN_KINDS.index("line")
_KEEPS_NOTHING = frozenset((
    "AccumulateGrad", "Add", "Alias", "AsStrided", "Cat", "Clone", "ConstantPadNd", "Copy",
    "Detach", "Expand", "Flip", "Mean", "Narrow", "Neg", "Permute", "Repeat", "Reshape",
    "ReshapeAlias", "Roll", "Select", "Slice", "Split", "SplitWithSizes", "Squeeze", "Stack", "Sub",
    "Sum", "T", "ToCopy", "Transpose", "Unbind", "UnsafeSplit", "UnsafeView", "Unsqueeze", "View",
))  # fmt: skip
"""Nodes that save no tensor (``tools/autograd/derivatives.yaml`` of 2.13), without ``Backward0``."""

_KEEPS_INPUTS = frozenset((
    "Abs", "Addbmm", "Addmm", "Addmv", "Baddbmm", "Bmm", "Clamp", "Convolution", "Cos", "Div",
    "Dot", "Embedding", "Gather", "Gelu", "Hardswish", "Index", "IndexSelect", "LeakyRelu", "Log",
    "MaskedFill", "Mm", "Mul", "Mv", "Pow", "Silu", "Sin", "Softplus", "Where",
))  # fmt: skip
"""Nodes that save inputs of their operator and no result of it: before the operator runs."""


@dataclass(frozen=True)
class Pass:
    """One run of autograd's engine.

    Attributes:
        nodes: Its part of the nodes.
        loss_ns: When the last of its forward operators had ended: the loss exists.
        begin_ns: When its first node begins.
        end_ns: When its last node has ended.
    """

    nodes: slice
    loss_ns: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class BackwardNodes:
    """Nodes in the order in which the engine runs them, times on the run's clock; one entry per node.

    Attributes:
        names: Distinct names, such as ``AddmmBackward0``.
        name: int64, index into ``names``.
        begin_ns: int64, ascending.
        end_ns: int64.
        forward_begin_ns: int64, of the operator that recorded the node, -1 = not known.
        forward_end_ns: int64, likewise.
        forward_line: int32, its source line, index into ``Attribution.lines``, -1 = not known.
        saves: bool, whether the node keeps tensors for itself.
        saves_inputs: bool, whether it keeps inputs of its operator only.
    """

    names: list[str]
    name: NDArray[np.intp]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    forward_begin_ns: NDArray[np.int64]
    forward_end_ns: NDArray[np.int64]
    forward_line: NDArray[np.int32]
    saves: NDArray[np.bool_]
    saves_inputs: NDArray[np.bool_]

    @classmethod
    def of(cls, run: ChangedRun) -> BackwardNodes:
        """Return all nodes of a run."""
        events, names, operators = (
            run.recorded.trace.events,
            run.recorded.trace.names,
            run.recorded.operators,
        )
        rows = np.flatnonzero(operators.rows_named(is_engine_node)).astype(np.int32)
        rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
        forward = operators.forward_of(rows)
        ids, name = np.unique(events.name[rows], return_inverse=True)
        short = [_short(names[int(each)]) for each in ids]
        stems = [each.partition("Backward")[0] for each in short]
        saves = np.array([each not in _KEEPS_NOTHING for each in stems], np.bool_)
        saves_inputs = np.array([each in _KEEPS_INPUTS for each in stems], np.bool_)
        return cls(
            names=short,
            name=name,
            begin_ns=run.clock(events.begin_ns[rows]),
            end_ns=run.clock(events.end_ns[rows]),
            forward_begin_ns=np.where(forward >= 0, run.clock(events.begin_ns[forward]), -1),
            forward_end_ns=np.where(forward >= 0, run.clock(events.end_ns[forward]), -1),
            forward_line=_lines(run, forward),
            saves=saves[name],
            saves_inputs=saves_inputs[name],
        )

    def __len__(self) -> int:
        return len(self.name)

    def name_of(self, node: int) -> str:
        """Return the name of a node."""
        return self.names[int(self.name[node])]

    @cached_property
    def passes(self) -> list[Pass]:
        """Backward passes, in order: a node recorded after another one ran belongs to the next pass."""
        if len(self) == 0:
            return []
        fresh = self.forward_begin_ns[1:] > self.end_ns[:-1]
        starts = [0, *(np.flatnonzero(fresh) + 1).tolist()]
        return [
            Pass(
                slice(start, end),
                int(self.forward_end_ns[start:end].max()),
                int(self.begin_ns[start]),
                int(self.end_ns[start:end].max()),
            )
            for start, end in zip(starts, [*starts[1:], len(self)], strict=True)
        ]

    def holding(self, times_ns: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the node that runs at each time, -1 = none."""
        if len(self) == 0:
            return np.full(len(times_ns), -1)
        found = np.searchsorted(self.begin_ns, times_ns, side="right") - 1
        return np.where((found >= 0) & (times_ns <= self.end_ns[found]), found, -1)


def _lines(run: ChangedRun, rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the source line of each operator, -1 where a capture noted none."""
    events, names = run.recorded.trace.events, run.recorded.trace.names
    lines = np.flatnonzero(events.kind == _LINE)
    if len(lines) == 0:
        return np.full(len(rows), -1, np.int32)
    lines = lines[np.argsort(events.begin_ns[lines], kind="stable")]
    times_ns = np.where(rows >= 0, events.begin_ns[rows], -1)
    at = np.searchsorted(events.begin_ns[lines], times_ns, side="right") - 1
    inside = (at >= 0) & (times_ns < events.end_ns[lines[at]])
    known = {name: index for index, name in enumerate(run.recorded.attribution.lines)}
    ids = np.where(inside, events.name[lines[at]], -1)
    used, which = np.unique(ids, return_inverse=True)
    return np.array([known.get(names[int(name)], -1) for name in used], np.int32)[which]


def _short(name: str) -> str:
    """Shorten ``autograd::engine::evaluate_function: AddmmBackward0`` to ``AddmmBackward0``."""
    return name.rpartition(": ")[2].rpartition("::")[2]
