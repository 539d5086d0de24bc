"""Which policies apply to which kind of trace, in which order."""

from __future__ import annotations

from xmem.orchestration.dropout import ResizeDropoutMasks
from xmem.orchestration.host_memory import AddMemoryBeforeTrace, AddTensorsBeforeTrace, DropHostMemory
from xmem.orchestration.lifetimes import (
    BatchDataPerIteration,
    GradientsUntilZeroGrad,
    PermanentOptimizerState,
    PersistentParameters,
    RecordedActivations,
)
from xmem.orchestration.onednn import DropOneDnnTemporaries
from xmem.orchestration.policy import Policy
from xmem.orchestration.recorded_requests import RecordedRequests
from xmem.orchestration.workspaces import AddCublasWorkspaces

CPU_TRACE: tuple[Policy, ...] = (
    DropHostMemory(),
    AddTensorsBeforeTrace(),
    DropOneDnnTemporaries(),
    ResizeDropoutMasks(),
    PersistentParameters(),
    BatchDataPerIteration(),
    RecordedActivations(),
    GradientsUntilZeroGrad(),
    PermanentOptimizerState(),
    AddCublasWorkspaces(),
)
"""A run on the CPU: first what is not on a GPU, then what differs there, then lifetimes, then what only a
GPU has.
"""

GPU_TRACE: tuple[Policy, ...] = (RecordedRequests(), AddMemoryBeforeTrace())
"""A run on a GPU, real or phantom, needs no corrections: only what its trace does not show."""
