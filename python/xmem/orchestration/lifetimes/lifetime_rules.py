"""The paper's five rules about how long blocks live (xMem, Middleware '25, section 3.3).

A recorded free is the truth: Python's references end at the same points of the script on both devices. The
rules decide where the trace does not say: a free that was lost (the address was allocated again without
one), or a block whose end lies outside.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.run.operators import ANNOTATION
from xmem.run.recorded import Context
from xmem.run.workload import Workload
from xmem.trace.attribution import Category
from xmem.trace.blocks import NEVER, OVERWRITTEN


def _lost_frees(workload: Workload, *categories: Category) -> NDArray[np.bool_]:
    lost: NDArray[np.bool_] = (workload.flags & OVERWRITTEN) != 0
    return lost & np.isin(workload.category, categories)


def _ending_at(workload: Workload, rows: NDArray[np.bool_], boundaries: NDArray[np.int64]) -> Workload:
    """End the blocks of these rows at the first boundary after their birth, if there is one."""
    boundaries = np.append(np.sort(boundaries), NEVER)
    free_ns = workload.free_ns.copy()
    free_ns[rows] = boundaries[np.searchsorted(boundaries[:-1], workload.alloc_ns[rows], side="right")]
    return workload.with_columns(free_ns=free_ns)


class PersistentParameters:
    """Rule 1: parameters and buffers stay from `model.to(device)` to the end of the run."""

    name = "persistent_parameters"
    description = "parameters and buffers stay until the end of the run (paper rule 1)"

    def __call__(self, workload: Workload, context: Context) -> Workload:  # noqa: ARG002
        """Give parameters with a lost free the end of the run."""
        rows = _lost_frees(workload, Category.PARAMETER, Category.BUFFER)
        return workload.with_columns(free_ns=np.where(rows, NEVER, workload.free_ns))


class BatchDataPerIteration:
    """Rule 2: the data of a batch live within its iteration."""

    name = "batch_data_per_iteration"
    description = (
        "batch data whose free was lost end with the fetch of the next batch or the iteration (paper rule 2)"
    )

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """End inputs with a lost free at the next optimizer step's end."""
        steps = context.operators.rows_named(lambda name: name.startswith("Optimizer.step#"), ANNOTATION)
        return _ending_at(workload, _lost_frees(workload, Category.INPUT), context.trace.events.end_ns[steps])


class RecordedActivations:
    """Rule 3: activations keep the lifetimes of the CPU run: the autograd engine frees saved tensors alike
    on both devices.
    """

    name = "recorded_activations"
    description = "activations keep their recorded lifetimes (paper rule 3)"

    def __call__(self, workload: Workload, context: Context) -> Workload:  # noqa: ARG002
        """Change nothing: the rule is that these lifetimes stand."""
        return workload


class GradientsUntilZeroGrad:
    """Rule 4: gradients live until `zero_grad` clears them."""

    name = "gradients_until_zero_grad"
    description = "gradients whose free was lost end at the next zero_grad (paper rule 4)"

    def __call__(self, workload: Workload, context: Context) -> Workload:
        """End gradients with a lost free at the next `Optimizer.zero_grad`."""
        clears = context.operators.rows_named(
            lambda name: name.startswith("Optimizer.zero_grad#"), ANNOTATION
        )
        return _ending_at(
            workload, _lost_frees(workload, Category.GRADIENT), context.trace.events.begin_ns[clears]
        )


class PermanentOptimizerState:
    """Rule 5: optimizer state stays from the first step that makes it."""

    name = "permanent_optimizer_state"
    description = "optimizer state stays from its first step to the end of the run (paper rule 5)"

    def __call__(self, workload: Workload, context: Context) -> Workload:  # noqa: ARG002
        """Give optimizer state with a lost free the end of the run."""
        rows = _lost_frees(workload, Category.OPTIMIZER_STATE)
        return workload.with_columns(free_ns=np.where(rows, NEVER, workload.free_ns))
