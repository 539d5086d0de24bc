"""Defines policies, and composes them into a plan.

A policy is a pure function on the workload that moves it closer to what CUDA would do. Each names the
behaviour that it reproduces and how we know; each is listed in the result with what it changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.errors import TraceError
from xmem.records import dataclass
from xmem.run.recorded import Recorded
from xmem.run.workload import Workload

_MOST_BYTES_OF_A_RUN = 1 << 62  # so that sums fit into 64 bits

_Seen = TypeVar("_Seen", bound=Recorded, contravariant=True)


class Policy(Protocol[_Seen]):
    """A named, pure function on the workload, from what it looks at: `Recorded` or `Context`."""

    name: str
    description: str

    def __call__(self, workload: Workload, context: _Seen, /) -> Workload:
        """Return the workload as it would be on the target."""


class _Lifetimes(NamedTuple):
    """The columns of a workload that determine what is alive when."""

    size_bytes: NDArray[np.int64]
    alloc_ns: NDArray[np.int64]
    free_ns: NDArray[np.int64]

    @classmethod
    def of(cls, workload: Workload) -> _Lifetimes:
        return cls(workload.size_bytes, workload.alloc_ns, workload.free_ns)

    def differing(self, other: _Lifetimes) -> int:
        """Count the rows, the same in both, whose size or lifetime differs."""
        columns = (
            (self.size_bytes, other.size_bytes),
            (self.alloc_ns, other.alloc_ns),
            (self.free_ns, other.free_ns),
        )
        differs = [one != two for one, two in columns if one is not two]  # most policies change one of them
        return int(np.count_nonzero(np.logical_or.reduce(differs))) if differs else 0

    def bytes_at(self, time_ns: int) -> int:
        return int(self.size_bytes[(self.alloc_ns <= time_ns) & (time_ns < self.free_ns)].sum())


@dataclass(frozen=True)
class PolicyChange:
    """The changes of one policy.

    Attributes:
        name: The policy's name.
        description: The CUDA behaviour that it reproduces.
        blocks_changed: Blocks added, dropped, resized or given another lifetime.
        bytes_changed: Sum of sizes after minus before, over all blocks of the run.
        package: The package that provides it, None for a built-in one.
        applied: False for a policy that was switched off.
    """

    name: str
    description: str
    blocks_changed: int
    bytes_changed: int
    package: str | None = None
    applied: bool = True
    _before_and_after: tuple[_Lifetimes, _Lifetimes] | None = field(default=None, repr=False, compare=False)

    def bytes_at(self, time_ns: int) -> int:
        """Return the change in bytes requested by the blocks alive at an instant: after minus before the
        policy."""
        if self._before_and_after is None:
            return 0
        before, after = self._before_and_after
        return after.bytes_at(time_ns) - before.bytes_at(time_ns)


def apply_policies(
    policies: Sequence[Policy[_Seen]], workload: Workload, context: _Seen, *, off: Collection[str] = ()
) -> tuple[Workload, list[PolicyChange]]:
    """Apply policies in order, except for those that are switched off; report what each one changed."""
    changes = []
    for policy in policies:
        before, applied = workload, policy.name not in off
        if applied:
            workload = _applied(policy, workload, context)
        blocks_changed = _blocks_changed(before, workload)
        changes.append(
            PolicyChange(
                name=policy.name,
                description=policy.description,
                blocks_changed=blocks_changed,
                bytes_changed=int(workload.size_bytes.sum() - before.size_bytes.sum()),
                package=getattr(policy, "package", None),
                applied=applied,
                _before_and_after=(_Lifetimes.of(before), _Lifetimes.of(workload))
                if blocks_changed
                else None,
            )
        )
    return workload, changes


def _applied(policy: Policy[_Seen], workload: Workload, context: _Seen) -> Workload:
    """Apply a policy.

    Raises:
        TraceError: It would add more memory than there is, as the trace tells of impossible tensors.
    """
    try:
        changed = policy(workload, context)
    except OverflowError:  # a size of more than 64 bits
        changed = None
    if changed is None or changed.size_bytes.sum(dtype=np.float64) > _MOST_BYTES_OF_A_RUN:
        raise TraceError(
            f"its operators were given tensors larger than any device (found by the policy {policy.name}): "
            "the trace is damaged; record it again",
            context.trace.path,
        )
    return changed


def _blocks_changed(before: Workload, after: Workload) -> int:
    """Count the rows that are in only one of the two, or in both with another size or lifetime.

    Rows of the trace are identified by their block; rows added by policies only ever grow in number.
    """
    if after is before:
        return 0
    if after.block is before.block:
        return _Lifetimes.of(before).differing(_Lifetimes.of(after))
    return _core.blocks_changed(_rows(before), _rows(after))


def _rows(
    workload: Workload,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    return workload.block, *_Lifetimes.of(workload)
