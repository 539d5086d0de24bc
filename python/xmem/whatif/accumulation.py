"""Gradient accumulation: more than one forward and backward pass before each step."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from xmem.errors import ConfigError
from xmem.records import dataclass
from xmem.run.workload import Workload, concatenated
from xmem.text.numbers import whole_number
from xmem.trace.attribution import Category
from xmem.trace.blocks import NEVER
from xmem.whatif.changed_run import ChangedRun, Span
from xmem.whatif.gradients import arrivals, in_flight

_MOST_REPEATED = 2_000_000
"""Blocks: far more than change the peak, and what fits into memory here."""

_PERSISTENT = (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE)


@dataclass(frozen=True)
class Accumulation:
    """``accumulate=N``: N micro-batches per step, each of the size of the recorded batch.

    Everything between the arrival of a batch and the end of its backward pass is repeated. The gradients of
    the first micro-batch stay until the recorded end; those of the others are added to them, node by node,
    and freed. Blocks that lived on into the next iteration (the old batch until the new one takes its name,
    the last loss) live on into the next micro-batch. Blocks that the recorded run makes once and keeps are
    not repeated.
    """

    text: str
    count: int

    def __call__(self, run: ChangedRun) -> ChangedRun:
        """Repeat the forward and backward pass of every iteration."""
        if self.count == 1:
            return run
        if len(run.steps) < 2:
            raise run.refusal(
                "it has one iteration, which does not show what the next one reuses; capture at least two"
            )
        batches = [_MicroBatch.of(run, index) for index in range(len(run.steps))]
        repeated_blocks = self.count * sum(len(batch.rows) for batch in batches)
        if repeated_blocks > _MOST_REPEATED:
            raise ConfigError(
                f"--what-if {self.text} would repeat {repeated_blocks:,} blocks",
                "use fewer micro-batches: after the first few, more of them hardly change the peak",
            )
        carried = [_carried(batch, after) for batch, after in pairwise(batches)]
        carried.append(_like_the_one_before(run, batches[-2], batches[-1], carried[-1]))
        moved = run
        for batch in reversed(batches):  # the last first: room does not move anything before it
            moved = moved.with_room(batch.span.end_ns, (self.count - 1) * batch.length_ns)
        free_ns = moved.workload.free_ns.copy()
        copies, later_ns = [], 0
        for batch, ranks in zip(batches, carried, strict=True):
            copies += self._copies(moved.workload, batch, ranks, later_ns)
            outlives = (ranks != _WITHIN) & (ranks != _KEPT) & ~batch.is_gradient
            free_ns[batch.rows[outlives]] = later_ns + batch.ends_of(ranks)[outlives]
            later_ns += (self.count - 1) * batch.length_ns
        repeated = concatenated([moved.workload.with_columns(free_ns=free_ns), *copies])
        return replace(moved.with_workload(repeated), accumulated=True)

    def _copies(
        self, moved: Workload, batch: _MicroBatch, ranks: NDArray[np.int64], later_ns: int
    ) -> list[Workload]:
        """Return the blocks of the micro-batches after the first; those of the last end as recorded."""
        ends_ns = batch.ends_of(ranks)
        repeated = (ranks != _KEPT) & ((ends_ns > batch.alloc_ns) | ~batch.is_gradient)
        rows, gradient = batch.rows[repeated], batch.is_gradient[repeated]
        as_recorded = (ranks[repeated] != _WITHIN) & ~gradient
        copied = moved.select(rows)
        category = np.where(gradient, Category.TEMPORARY, copied.category).astype(copied.category.dtype)
        tensor = np.where(gradient, -1, copied.tensor).astype(copied.tensor.dtype)
        found = []
        for number in range(1, self.count):
            free_ns = later_ns + ends_ns[repeated] + number * batch.length_ns
            if number == self.count - 1:
                free_ns = np.where(as_recorded, copied.free_ns, free_ns)
            found.append(
                copied.with_columns(
                    alloc_ns=copied.alloc_ns + number * batch.length_ns,
                    free_ns=free_ns,
                    category=category,
                    tensor=tensor,
                )
            )
        return found


_WITHIN, _KEPT = -1, -2
"""Values in place of a rank: the block ends within its micro-batch, or outlives the next one."""


@dataclass(frozen=True)
class _MicroBatch:
    """The recorded forward and backward before a step.

    Attributes:
        span: From the arrival of the batch to the end of the backward pass.
        rows: int64 [n], rows of the workload that are allocated in it and may be repeated.
        alloc_ns: int64 [n], ascending.
        free_ns: int64 [n]; for a gradient, when it would be freed if it were added to another.
        size_bytes: int64 [n].
        is_gradient: bool [n], gradients that the step finds.
    """

    span: Span
    rows: NDArray[np.intp]
    alloc_ns: NDArray[np.int64]
    free_ns: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    is_gradient: NDArray[np.bool_]

    @classmethod
    def of(cls, run: ChangedRun, index: int) -> _MicroBatch:
        """Return the micro-batch before a step."""
        span, workload = run.micro_batches[index], run.workload
        inside = (workload.alloc_ns >= span.begin_ns) & (workload.alloc_ns < span.end_ns)
        handles = (workload.category == Category.WORKSPACE) & (workload.free_ns == NEVER)
        rows = np.flatnonzero(inside & ~np.isin(workload.category, _PERSISTENT) & ~handles)
        free_ns = workload.free_ns.copy()
        gradients, ends_ns = in_flight(
            run, arrivals(run, run.backwards[index], run.parameters(run.steps[index]))
        )
        free_ns[gradients] = ends_ns
        return cls(
            span,
            rows,
            workload.alloc_ns[rows],
            free_ns[rows],
            workload.size_bytes[rows],
            np.isin(rows, gradients),
        )

    @property
    def length_ns(self) -> int:
        """Time from the start of one micro-batch to that of the next, with room for what ends between."""
        return self.span.end_ns - self.span.begin_ns + len(self.rows) + 1

    @cached_property
    def requests_ns(self) -> NDArray[np.int64]:
        """Allocations and frees of the blocks that live within it, ascending."""
        return np.sort(np.concatenate([self.alloc_ns, self.free_ns[self.free_ns < self.span.end_ns]]))

    def ends_of(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when the blocks end if another micro-batch follows."""
        between_ns = self.span.end_ns + np.arange(len(self.rows))
        next_ns = np.append(self.requests_ns, self.span.end_ns) + self.length_ns
        places_ns = np.concatenate([between_ns, next_ns])
        ends_ns: NDArray[np.int64] = places_ns[np.clip(ranks, 0, len(places_ns) - 1)]
        return np.where(ranks == _WITHIN, self.free_ns, ends_ns)


def _carried(batch: _MicroBatch, after: _MicroBatch) -> NDArray[np.int64]:
    """Return how far each block lives beyond its micro-batch.

    A rank below the number of blocks is a place between two micro-batches; from there on, it counts the
    requests that the block sees of the next one.
    """
    count = len(batch.rows)
    ranks = count + np.searchsorted(after.requests_ns, batch.free_ns, side="left")
    between = batch.free_ns < after.span.begin_ns
    ranks[between] = np.argsort(np.argsort(batch.free_ns[between], kind="stable"))
    ranks[batch.free_ns >= after.span.end_ns] = _KEPT
    ranks[batch.free_ns < batch.span.end_ns] = _WITHIN
    return ranks.astype(np.int64)


def _like_the_one_before(
    run: ChangedRun, before: _MicroBatch, last: _MicroBatch, ranks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Treat blocks of the last iteration, which outlive the recording, like those of the one before."""
    if not np.array_equal(before.size_bytes, last.size_bytes):
        raise run.refusal("its last two iterations differ")
    return np.where(last.free_ns < last.span.end_ns, _WITHIN, ranks)


def parse_accumulation(text: str, value: str) -> Accumulation:
    """Read a number of micro-batches.

    Raises:
        ConfigError: The text is not such a number.
    """
    batches = whole_number(value)
    if not batches:
        raise ConfigError(
            f"--what-if {text} is invalid", "use a number of micro-batches, such as accumulate=4"
        )
    return Accumulation(text, batches)
