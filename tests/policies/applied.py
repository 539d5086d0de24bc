"""One policy applied to a trace written by hand."""

from __future__ import annotations

from dataclasses import replace

from xmem.attribution import attribute
from xmem.blocks import CPU, pair_blocks
from xmem.orchestration import Context, Policy, RunSettings, Target, Workload
from xmem.orchestration.policy import PolicyChange, apply_policies
from xmem.orchestration.workload import workload_of
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace import read_trace

AMPERE = Target(compute_capability=(8, 6), torch_version=(2, 12))


def target(version: tuple[int, int] = (2, 12), **environment: str) -> Target:
    """An RTX 3060 with a version of torch and environment variables of the script."""
    settings = RunSettings(environment=tuple(sorted(environment.items())))
    return replace(AMPERE, torch_version=version, settings=settings)


def applied(
    policy: Policy, trace: TraceBuilder, *, target: Target = AMPERE, growth: int = 1
) -> tuple[Workload, PolicyChange]:
    """The workload after the policy and what changed.

    ``growth`` multiplies the size of every block, as a point of a fitted model does.
    """
    read = read_trace(trace.bytes())
    blocks = pair_blocks(read)
    attribution = attribute(read, blocks)
    before = workload_of(blocks, attribution, CPU, -1)
    before = before.with_columns(size_bytes=before.size_bytes * growth)
    after, (change,) = apply_policies([policy], before, Context(read, blocks, attribution, target))
    return after, change


def sequence(workload: Workload) -> list[int]:
    """Sizes in the order in which they are allocated (positive) and freed (negative)."""
    events = [
        (int(time), 1, int(size)) for time, size in zip(workload.alloc_ns, workload.size_bytes, strict=True)
    ]
    events += [
        (int(time), 0, -int(size))
        for time, size in zip(workload.free_ns, workload.size_bytes, strict=True)
        if time < 2**62
    ]
    return [size for _, _, size in sorted(events, key=lambda event: event[:2])]
