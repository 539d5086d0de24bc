"""Requests as the real allocator got them: a capture on the phantom GPU brings its history along."""

from __future__ import annotations

from typing import Any

import numpy as np

from xmem.orchestration.policy import Recorded
from xmem.orchestration.workload import Workload


class RecordedRequests:
    """The profiler tells the size of the block that served a request; the allocator's own history tells what
    was asked for, and on which stream.

    Both list the allocations of a device in the order in which the allocator served them (`alloc` entries
    of `device_traces`, CUDACachingAllocator.cpp since torch 2.0), so they are joined by position; when they
    do not match in number, or a request is larger than its block, the trace is taken as it is.
    """

    name = "recorded_requests"
    description = "sizes as asked for and streams, from the history of the allocator that served the run"

    def __call__(self, workload: Workload, context: Recorded) -> Workload:
        """Replace sizes, fill in streams."""
        requests = recorded_requests(context)
        if requests is None or len(requests["size_bytes"]) != len(workload):
            return workload
        sizes = np.array(requests["size_bytes"], np.int64)
        if (sizes > workload.size_bytes).any():
            return workload
        streams = requests["stream"]
        if not streams:
            return workload.with_columns(size_bytes=sizes)
        return workload.with_columns(size_bytes=sizes, stream=np.array(streams, np.int64))


def recorded_requests(context: Recorded) -> dict[str, Any] | None:
    """The allocator's history in the trace, None for traces that were not captured on the phantom GPU."""
    phantom = (context.metadata or {}).get("phantom")
    return None if phantom is None else phantom["requests"]
