"""Finds out who allocated each block, and when in the training step (docs/trace_model.md, sections 5 and
6)."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.errors import TraceError
from xmem.printable import one_line
from xmem.records import dataclass
from xmem.trace.blocks import BlockTable
from xmem.trace.notes import Mode
from xmem.trace.trace import Trace


class Phase(IntEnum):
    """Part of the training step."""

    OTHER = 0
    LOAD = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER_STEP = 4
    ZERO_GRAD = 5

    @property
    def label(self) -> str:
        """The name in results."""
        return self.name.lower()


class Category(IntEnum):
    """What a block holds."""

    UNKNOWN = 0
    PARAMETER = 1
    BUFFER = 2
    GRADIENT = 3
    OPTIMIZER_STATE = 4
    INPUT = 5
    ACTIVATION = 6
    WORKSPACE = 7
    TEMPORARY = 8
    BEFORE_TRACE = 9
    """Allocated before a GPU's trace began: its totals and frees show the bytes, not what they are."""

    @property
    def label(self) -> str:
        """The name in results."""
        return self.name.lower()


PHASE_LABELS = tuple(phase.label for phase in Phase)
"""By value."""
CATEGORY_LABELS = tuple(category.label for category in Category)
"""By value."""


@dataclass(frozen=True)
class Attribution:
    """One row per block, in the order of the BlockTable.

    Attributes:
        operator: int32, innermost operator, row of the EventTable, -1 = none.
        root_operator: int32, outermost operator that is not the autograd engine's, -1 = none.
        forward_link: int32, forward operator of a backward one, row of the EventTable, -1 = none.
        phase: uint8, a ``Phase``, of the allocation.
        free_phase: uint8, a ``Phase``, of the free.
        iteration: int32, of the allocation, -1 = outside of all.
        free_iteration: int32, of the free, -1 = outside of all or never.
        module: int32, index into ``modules``, -1 = none.
        source_line: int32, index into ``lines``, -1 = none.
        host: uint8, 1 = host memory on a machine with a GPU.
        category: uint8, a ``Category``.
        tensor: int32, row of the capture's named tensors, -1 = none.
        modules: Module paths.
        lines: Source lines, ``PATH:LINE``.
        optimizer_steps: Number of outermost optimizer steps in the trace.
    """

    operator: NDArray[np.int32]
    root_operator: NDArray[np.int32]
    forward_link: NDArray[np.int32]
    phase: NDArray[np.uint8]
    free_phase: NDArray[np.uint8]
    iteration: NDArray[np.int32]
    free_iteration: NDArray[np.int32]
    module: NDArray[np.int32]
    source_line: NDArray[np.int32]
    host: NDArray[np.uint8]
    category: NDArray[np.uint8]
    tensor: NDArray[np.int32]
    modules: list[str]
    lines: list[str]
    optimizer_steps: int

    def __len__(self) -> int:
        return len(self.operator)


def attribute(trace: Trace, blocks: BlockTable) -> Attribution:
    """Attribute every block of a trace.

    Raises:
        TraceError: The capture's list of named tensors is damaged.
    """
    category, address, time_ns = _named_tensors(trace)
    on_gpu = trace.notes.mode in (Mode.PHANTOM, Mode.GPU)
    core = _core.attribute(trace.core, blocks.core, category, address, time_ns, on_gpu)
    return Attribution(
        operator=core.operator,
        root_operator=core.root_operator,
        forward_link=core.forward_link,
        phase=core.phase,
        free_phase=core.free_phase,
        iteration=core.iteration,
        free_iteration=core.free_iteration,
        module=core.module,
        source_line=core.source_line,
        host=core.host,
        category=core.category,
        tensor=core.tensor,
        modules=list(map(one_line, core.modules)),
        lines=list(map(one_line, core.lines)),
        optimizer_steps=core.optimizer_steps,
    )


def trains(attribution: Attribution) -> bool:
    """Return whether an optimizer steps in the run."""
    return attribution.optimizer_steps > 0 or bool((attribution.phase == Phase.OPTIMIZER_STEP).any())


_ROLES = {
    role.label: role
    for role in (
        Category.PARAMETER,
        Category.BUFFER,
        Category.GRADIENT,
        Category.OPTIMIZER_STATE,
        Category.INPUT,
    )
}


def _named_tensors(trace: Trace) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    tensors = trace.notes.tensors
    try:
        columns = (
            np.array([_ROLES[role] for role in tensors.role], np.uint8),
            np.array(tensors.address, np.int64),
            np.array(tensors.time_ns, np.int64),
        )
        if any(column.shape != columns[0].shape for column in columns):
            raise ValueError("the columns have different lengths")
        return columns
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TraceError(
            f"the capture's list of tensors (key 'xmem') is damaged: {error!r}; capture again", trace.path
        ) from None
