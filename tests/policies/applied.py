"""One policy applied to a trace written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from xmem.orchestration import Policy, RunSettings, Target, Workload
from xmem.orchestration.policy import PolicyChange, apply_policies
from xmem.run.recorded import Recorded
from xmem.run.workload import workload_of
from xmem.scaling.polynomials import fit_polynomials
from xmem.scaling.shapes import fit_shapes
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.attribution import attribute
from xmem.trace.blocks import CPU, pair_blocks
from xmem.trace.trace import read_trace

AMPERE = Target(compute_capability=(8, 6), torch_version=(2, 12))


def target(version: tuple[int, int] = (2, 12), **environment: str) -> Target:
    """An RTX 3060 with a version of torch and environment variables of the script."""
    settings = RunSettings(environment=tuple(sorted(environment.items())))
    return replace(AMPERE, torch_version=version, settings=settings)


def applied(policy: Policy, trace: TraceBuilder, *, target: Target = AMPERE) -> tuple[Workload, PolicyChange]:
    """The workload after the policy and what changed."""
    recorded, before = _recorded_and_workload(trace)
    after, (change,) = apply_policies([policy], before, recorded.on(target))
    return after, change


def applied_at(
    policy: Policy, run_at: Callable[[int], TraceBuilder], batch: int, *, target: Target = AMPERE
) -> tuple[Workload, PolicyChange]:
    """The same of a model fitted from the runs at batches of 2 and 3."""
    points = [{"batch": 2}, {"batch": 3}]
    runs = [_recorded_and_workload(run_at(point["batch"])) for point in points]
    sizes = np.stack([workload.size_bytes for _, workload in runs], axis=1)
    recorded, before = runs[-1]
    size_bytes, _ = fit_polynomials(["batch"], points, sizes).at({"batch": batch})
    inputs = fit_shapes(["batch"], points, [run for run, _ in runs], base=1).at({"batch": batch})
    after, (change,) = apply_policies(
        [policy], before.with_columns(size_bytes=size_bytes), recorded.with_inputs(inputs).on(target)
    )
    return after, change


def recorded(trace: TraceBuilder) -> Recorded:
    """The trace, its blocks and their attribution."""
    return _recorded_and_workload(trace)[0]


def _recorded_and_workload(trace: TraceBuilder) -> tuple[Recorded, Workload]:
    read = read_trace(trace.bytes())
    blocks = pair_blocks(read)
    attribution = attribute(read, blocks)
    return Recorded(read, blocks, attribution), workload_of(blocks, attribution, CPU, -1)


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
