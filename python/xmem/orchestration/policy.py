"""What a policy is, and how policies are composed into a plan.

A policy is a pure function on the workload that moves it closer to what CUDA would do. Each names the
behaviour that it reproduces and how we know; each is listed in the result with what it changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from xmem.attribution import Attribution
from xmem.blocks import BlockTable
from xmem.cudnn.workspaces import Workspaces
from xmem.orchestration.convolution_calls import InputDims
from xmem.orchestration.operators import OperatorIndex
from xmem.orchestration.workload import Workload
from xmem.trace import Trace

_Seen = TypeVar("_Seen", bound="Recorded", contravariant=True)


@dataclass(frozen=True)
class Target:
    """What the estimate is for, as far as policies depend on it.

    Attributes:
        compute_capability: CUDA compute capability, (8, 6) for an RTX 3060.
        torch_version: (major, minor) of the PyTorch that will run the job.
        convolutions: Who says what workspaces cuDNN takes there, None to count none.
    """

    compute_capability: tuple[int, int]
    torch_version: tuple[int, int]
    convolutions: Workspaces | None = None


@dataclass(frozen=True)
class Recorded:
    """What the trace says of the run: all that a policy may look at that holds for any target."""

    trace: Trace
    blocks: BlockTable
    attribution: Attribution
    input_dims: InputDims | None = None  # at a point of a fitted model

    @cached_property
    def operators(self) -> OperatorIndex:
        """Names and nesting of the trace's operators."""
        return OperatorIndex(self.trace)

    @property
    def metadata(self) -> dict[str, Any] | None:
        """What our capture wrote, None for a foreign trace."""
        return self.trace.metadata

    @property
    def asked_for_gpu(self) -> bool:
        """Whether this is a capture of a script that asked for a GPU, so that host and device memory are
        told apart.
        """
        return bool(self.metadata and self.metadata.get("device_requests"))

    def on(self, target: Target) -> Context:
        """The same run, for policies that move it to a target."""
        context = Context(self.trace, self.blocks, self.attribution, self.input_dims, target=target)
        context.__dict__["operators"] = self.operators  # indexed once for all targets
        return context

    def with_input_dims(self, dims: InputDims | None) -> Recorded:
        """The same run with convolutions of other sizes."""
        recorded = replace(self, input_dims=dims)
        recorded.__dict__["operators"] = self.operators
        return recorded


@dataclass(frozen=True)
class Context(Recorded):
    """The run, and the target that it is moved to."""

    target: Target = field(kw_only=True)


class Policy(Protocol[_Seen]):
    """A named, pure function on the workload, from what it looks at: `Recorded` or `Context`."""

    name: str
    description: str

    def __call__(self, workload: Workload, context: _Seen, /) -> Workload:
        """Return the workload as it would be on the target."""


@dataclass(frozen=True)
class PolicyChange:
    """What one policy changed.

    Attributes:
        name: The policy's name.
        description: The CUDA behaviour that it reproduces.
        blocks_changed: Blocks added, dropped, resized or given another lifetime.
        bytes_changed: Sum of sizes after minus before, over all blocks of the run.
    """

    name: str
    description: str
    blocks_changed: int
    bytes_changed: int


def apply_policies(
    policies: Sequence[Policy[_Seen]], workload: Workload, context: _Seen
) -> tuple[Workload, list[PolicyChange]]:
    """Apply policies in order; say of each what it changed."""
    changes = []
    for policy in policies:
        before, workload = workload, policy(workload, context)
        changes.append(
            PolicyChange(
                name=policy.name,
                description=policy.description,
                blocks_changed=_blocks_changed(before, workload),
                bytes_changed=int(workload.size_bytes.sum() - before.size_bytes.sum()),
            )
        )
    return workload, changes


def _blocks_changed(before: Workload, after: Workload) -> int:
    """Rows that are in only one of the two, or in both with another size or lifetime.

    Rows of the trace are told by their block; rows added by policies only ever grow in number.
    """
    if after is before:
        return 0
    if after.block is before.block:
        return int(_differs(before, after).sum())
    recorded = before.block >= 0, after.block >= 0
    old, new = (workload.select(rows) for workload, rows in zip((before, after), recorded, strict=True))
    row_of = np.full(int(before.block.max(initial=-1)) + 1, -1)
    row_of[old.block] = np.arange(len(old))
    kept = row_of[new.block]
    dropped = len(old) - len(new)
    added = int((~recorded[1]).sum()) - int((~recorded[0]).sum())
    return int(_differs(old.select(kept), new).sum()) + dropped + added


def _differs(before: Workload, after: Workload) -> NDArray[np.bool_]:
    """Say of each row, the same in both, whether its size or lifetime changed."""
    changed: NDArray[np.bool_] = (
        (before.size_bytes != after.size_bytes)
        | (before.alloc_ns != after.alloc_ns)
        | (before.free_ns != after.free_ns)
    )
    return changed
