"""The largest single blocks at the peak, with birth and death in words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xmem.estimation.estimate import LargeBlock
from xmem.estimation.holders import Holders, iteration_begins
from xmem.records import dataclass
from xmem.run.workload import Workload
from xmem.simulation.replay import Replay
from xmem.trace.attribution import Attribution, Category, Phase
from xmem.trace.blocks import NEVER
from xmem.trace.trace import Trace

_COUNT = 10
_IN_PHASE = {
    Phase.LOAD: "while data is loaded",
    Phase.FORWARD: "in the forward",
    Phase.BACKWARD: "in the backward",
    Phase.OPTIMIZER_STEP: "in the optimizer's step",
    Phase.ZERO_GRAD: "in zero_grad",
}


def largest_blocks(
    trace: Trace, attribution: Attribution, workload: Workload, holders: Holders, replay: Replay
) -> tuple[LargeBlock, ...]:
    """Return the ten largest blocks alive at the peak of allocated memory, the largest first."""
    story = _Story(trace, attribution, workload, holders)
    rows = holders.alive_at(replay.peak_allocated.request)
    held = replay.placement.size_bytes[rows]
    chosen = np.argsort(-held, kind="stable")[:_COUNT]
    return tuple(
        LargeBlock(
            bytes=int(size_bytes),
            category=Category(int(workload.category[row])).label,
            module=holders.module_name(row),
            operator=holders.operator_name(row),
            source_line=holders.line_name(row),
            alloc_ns=int(workload.alloc_ns[row]),
            free_ns=-1 if workload.free_ns[row] == NEVER else int(workload.free_ns[row]),
            words=story.of(row),
        )
        for row, size_bytes in zip(rows[chosen].tolist(), held[chosen].tolist(), strict=True)
    )


@dataclass(frozen=True)
class _Story:
    trace: Trace
    attribution: Attribution
    workload: Workload
    holders: Holders

    def of(self, row: int) -> str:
        """Describe it: ``saved for backward by GPT.blocks.3.mlp from model.py:41 until its backward``."""
        return " ".join([self._what(row), *self._origin(row), self._death(row)])

    def _what(self, row: int) -> str:
        category = Category(int(self.workload.category[row]))
        name = self._tensor_name(row)
        if category in (Category.PARAMETER, Category.BUFFER):
            return f"{category.label} {name}" if name else category.label
        if category == Category.GRADIENT:
            return f"gradient of {name}" if name else "gradient"
        if category == Category.OPTIMIZER_STATE:
            return f"optimizer state {name}" if name else "optimizer state"
        if category == Category.INPUT:
            return "batch"
        if category == Category.ACTIVATION:
            return "saved for backward" if self._is_saved(row) else "result"
        return category.label

    def _origin(self, row: int) -> Iterator[str]:
        """Describe the origin of a block; a named tensor's owner is in its name."""
        category = Category(int(self.workload.category[row]))
        module, operator = self.holders.module_name(row), self.holders.operator_name(row)
        if self._tensor_name(row) is None and category != Category.INPUT:
            in_backward = self.workload.phase[row] == Phase.BACKWARD
            if category in (Category.TEMPORARY, Category.WORKSPACE) and operator:
                yield f"of {operator}"
                if module:
                    yield f"{'in the backward of' if in_backward else 'in'} {module}"
            elif module or operator:
                yield f"{'by' if self._is_saved(row) else 'of'} {module or operator}"
        if line := self.holders.line_name(row):
            yield f"from {line}"

    def _death(self, row: int) -> str:
        if self.workload.free_ns[row] == NEVER:
            return "to the end of the run"
        if self._is_saved(row):
            return "until its backward"
        return f"until it is freed{self._when(row)}"

    def _when(self, row: int) -> str:
        """Describe the part of the step in which it dies, and the iteration if that is not its own."""
        iteration = int(np.searchsorted(self._begins, self.workload.free_ns[row], side="right")) - 1
        phase = self._free_phase(row)
        place = f" {_IN_PHASE[phase]}" if phase in _IN_PHASE else ""
        same = iteration == self.workload.iteration[row]
        if not place and same:
            return " in the same iteration"
        return place if same else f"{place}{' of' if place else ' in'} iteration {iteration}"

    @cached_property
    def _begins(self) -> NDArray[np.int64]:
        return iteration_begins(self.workload)

    def _is_saved(self, row: int) -> bool:
        return (
            self.workload.category[row] == Category.ACTIVATION
            and self._free_phase(row) == Phase.BACKWARD
            and self.workload.phase[row] == Phase.FORWARD
        )

    def _free_phase(self, row: int) -> Phase:
        """Return the phase of the free, which is known for blocks in the trace."""
        block = int(self.workload.block[row])
        return Phase(int(self.attribution.free_phase[block])) if block >= 0 else Phase.OTHER

    def _tensor_name(self, row: int) -> str | None:
        tensor = int(self.workload.tensor[row])
        if tensor < 0:
            return None
        tensors = self.trace.notes.tensors
        return None if tensors.role[tensor] == "input" else str(tensors.name[tensor])
