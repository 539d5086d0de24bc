"""``torch.distributed._tools.mem_tracker.MemTracker`` around the job itself, under fake tensors.

The device is the CPU: without a GPU autograd cannot run on fake CUDA tensors. Its peak is of tensors, not of
the allocator.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from workloads import Job, prepare, train


def peak_bytes(job: Job) -> int:
    """The most that was alive at once in two iterations, the second with optimizer state."""
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode(allow_non_fake_inputs=True):
        prepared = prepare(replace(job, iterations=2))
        tracker = MemTracker()
        with tracker:
            tracker.track_external(prepared.model)
            train(prepared, torch.device("cpu"), lambda _: tracker.reset_mod_stats())
        by_device = tracker.get_tracker_snapshot("peak")
    return max(int(sizes["Total"]) for sizes in by_device.values())
