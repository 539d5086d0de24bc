"""Sizes that an estimate itself does not know, and how far they move the peak."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from xmem.estimation.estimate import ConvolutionWorkspaces, Scaling
from xmem.estimation.move import Moved, changed, requests_of
from xmem.orchestration.convolution.cudnn_convolutions import plan_convolutions
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.replay import Alternatives, Replay
from xmem.simulation.replay import replay as replay_requests


def left_open(
    estimated_bytes: int, scaling: Scaling | None, workspaces: ConvolutionWorkspaces | None
) -> tuple[int | None, int | None]:
    """Return the least and largest peak with sizes that the estimate does not know; None where it knows all.

    These are sizes that a fit leaves open and the plans of a cuDNN that is not the job's. The effect of each
    is known with the other as estimated, so both at once move the peak by the sum.

    Args:
        estimated_bytes: Peak reserved memory of the run without limit.
        scaling: Sizes that a fit leaves open.
        workspaces: Sizes that the plans leave open.
    """
    if scaling is None and (workspaces is None or workspaces.exact):
        return None, None
    least = most = estimated_bytes
    if scaling is not None:
        least, most = scaling.peak_reserved_least_bytes, scaling.peak_reserved_most_bytes
    if workspaces is not None and not workspaces.exact:
        least -= estimated_bytes - workspaces.peak_reserved_least_bytes
        most += workspaces.peak_reserved_most_bytes - estimated_bytes
    return max(least, 0), most


def scaling_of(moved: Moved, most: Replay, options: AllocatorOptions) -> Scaling | None:
    """Return what the fit leaves open, among the blocks that are left after all policies and changes."""
    scaled, corrected, workload = moved.observed.scaled, moved.corrected, moved.workload
    if scaled is None:
        return None
    recorded = workload.block >= 0
    uncertain = recorded & scaled.uncertain[workload.block]
    least_bytes = most.peak_reserved.bytes
    if uncertain.any():
        unsure = (corrected.block >= 0) & scaled.uncertain[corrected.block]
        sizes = np.where(unsure, scaled.least_bytes[corrected.block], corrected.size_bytes)
        smaller = corrected.with_columns(size_bytes=sizes)
        least = replay_requests(
            requests_of(changed(moved.observed, smaller, moved.target), smaller), options=options
        )
        least_bytes = min(least_bytes, least.peak_reserved.bytes)
    return Scaling(
        at=scaled.at,
        fitted_from=scaled.fitted_from,
        blocks=len(workload),
        blocks_unverified=int((recorded & scaled.unverified[workload.block]).sum()),
        blocks_uncertain=int(uncertain.sum()),
        peak_reserved_least_bytes=least_bytes,
        peak_reserved_most_bytes=most.peak_reserved.bytes + scaled.extra_bytes,
    )


def convolution_workspaces(
    moved: Moved, unlimited: Replay, options: AllocatorOptions
) -> ConvolutionWorkspaces | None:
    """Return the source of convolution workspaces, and their effect on the peak; None if the run has none."""
    planned = plan_convolutions(moved.corrected, moved.observed.recorded.on(moved.target))
    if planned is None:
        return None
    _, _, answer = planned
    own = moved.workload.choice >= 0
    peak = unlimited.peak_reserved.bytes
    least = most = peak
    if not answer.exact and own.any():
        least, most = (
            replay_requests(
                replace(moved.requests, alternatives=_only(moved.requests.alternatives, which)),
                options=options,
            ).peak_reserved.bytes
            for which in (np.minimum, np.maximum)
        )
    return ConvolutionWorkspaces(
        source=answer.source,
        cudnn_version=answer.version,
        exact=answer.exact,
        blocks=int(own.sum()),
        largest_bytes=int(moved.workload.size_bytes[own].max(initial=0)),
        peak_reserved_least_bytes=min(least, peak),
        peak_reserved_most_bytes=max(most, peak),
    )


def _only(alternatives: Alternatives, which: np.ufunc) -> Alternatives:
    """Reduce each list to one size, its smallest or its largest."""
    sizes = which.reduceat(alternatives.size_bytes, alternatives.begin[:-1])
    return Alternatives(alternatives.list, np.arange(len(sizes) + 1), sizes)
