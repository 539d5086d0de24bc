"""Release of a tensor that a name keeps beyond its last use."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xmem.errors import ConfigError
from xmem.records import dataclass
from xmem.text.source_lines import user_line
from xmem.trace.attribution import Category, Phase
from xmem.whatif.backward_nodes import BackwardNodes, Pass
from xmem.whatif.changed_run import ChangedRun

_KEPT_ON_PURPOSE = (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)
_ON_PROBABILITIES = frozenset(("LogSoftmaxBackward0", "NllLossBackward0", "NllLoss2DBackward0"))


@dataclass(frozen=True)
class Release:
    """``release=FILE:LINE``: tensors made at a line end with their last use, as after ``del NAME``.

    The last use of a tensor is the backward pass that follows its birth; a block that is alive when that pass
    has ended was kept by a name only. If the pass runs only a cross entropy, which keeps probabilities and
    not their input, before the node of the operator that made the tensor, the last use is the loss.
    """

    text: str
    line: str

    def __call__(self, run: ChangedRun) -> ChangedRun:
        """Free the tensors of the line after their last use.

        Raises:
            TraceError: Nothing made at the line outlives its last use.
            ConfigError: Forward passes were repeated before.
        """
        run.require_not_accumulated(self.text)
        lines = [user_line(line) for line in run.recorded.attribution.lines]
        own = [
            index for index, line in enumerate(lines) if line == self.line or line.endswith(f"/{self.line}")
        ]
        kept = kept_beyond_use(run)
        chosen = np.isin(run.workload.source_line[kept.rows], own)
        if not chosen.any():
            known = sorted(
                {lines[line] for line in run.workload.source_line[kept.rows].tolist() if line >= 0}
            )
            there_are = f"; tensors of these lines are: {', '.join(known)}" if known else ""
            raise run.refusal(f"no tensor made at {self.line} is kept beyond its last use{there_are}")
        free_ns = run.workload.free_ns.copy()
        free_ns[kept.rows[chosen]] = kept.last_use_ns[chosen]
        return run.with_workload(run.workload.with_columns(free_ns=free_ns))


class Kept(NamedTuple):
    """Blocks of forward passes and batches that something keeps beyond their last use.

    Attributes:
        rows: int64 [n], rows of the workload.
        last_use_ns: int64 [n], times of the last use.
        for_loss: bool [n], whether the last use is the loss; else it is the backward pass.
    """

    rows: NDArray[np.intp]
    last_use_ns: NDArray[np.int64]
    for_loss: NDArray[np.bool_]


def kept_beyond_use(run: ChangedRun) -> Kept:
    """Find the blocks that a name keeps."""
    workload, nodes = run.workload, BackwardNodes.of(run)
    passes = nodes.passes
    if not passes:
        return Kept(np.zeros(0, np.intp), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    begins = np.array([each.begin_ns for each in passes], np.int64)
    ends = np.array([each.end_ns for each in passes], np.int64)
    losses = np.array([_after_loss(run, each) for each in passes], np.int64)
    made = ~np.isin(workload.phase, (Phase.BACKWARD, Phase.OPTIMIZER_STEP, Phase.ZERO_GRAD))
    of_loop = (workload.iteration >= 0) & made & ~np.isin(workload.category, _KEPT_ON_PURPOSE)
    rows = np.flatnonzero(of_loop & (workload.category != Category.WORKSPACE))
    own = np.searchsorted(begins, workload.alloc_ns[rows], side="right")
    rows, own = rows[own < len(passes)], own[own < len(passes)]
    kept = workload.free_ns[rows] > ends[own]
    rows, own = rows[kept], own[kept]
    for_loss = np.array(
        [
            _is_for_cross_entropy(nodes, passes[which], born_ns)
            for which, born_ns in zip(own.tolist(), workload.alloc_ns[rows].tolist(), strict=True)
        ],
        np.bool_,
    )
    return Kept(rows, np.where(for_loss, losses[own], ends[own]), for_loss)


def _after_loss(run: ChangedRun, backward: Pass) -> int:
    """Return when the loss exists and has its name, right before the backward pass."""
    alloc_ns = run.workload.alloc_ns
    at = int(np.searchsorted(alloc_ns, backward.loss_ns))
    return min(int(alloc_ns[at]), backward.begin_ns) if at < len(alloc_ns) else backward.begin_ns


def _is_for_cross_entropy(nodes: BackwardNodes, backward: Pass, born_ns: int) -> bool:
    """Return whether only a cross entropy comes before the node of the operator that made a tensor."""
    for index in range(backward.nodes.start, backward.nodes.stop):
        if nodes.forward_begin_ns[index] <= born_ns <= nodes.forward_end_ns[index]:
            return bool(index > backward.nodes.start)
        if nodes.saves[index] and nodes.name_of(index) not in _ON_PROBABILITIES:
            return False
    return False


def parse_release(text: str, value: str) -> Release:
    """Read a line of the script.

    Raises:
        ConfigError: The text is not a line of a script.
    """
    path, _, number = value.rpartition(":")
    if not path or not number.isdecimal():
        raise ConfigError(
            f"--what-if {text} does not name a line", "use a file and a line, such as release=train.py:41"
        )
    return Release(text, value)
