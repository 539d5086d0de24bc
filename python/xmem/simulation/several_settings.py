"""One run with several settings of the allocator."""

from __future__ import annotations

import os
from collections.abc import Iterable

from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.replay import Requests, replay

_WORTH_THREADS = 100_000
"""Requests that take longer to replay than a thread takes to start."""


def peaks_reserved(requests: Requests, settings: Iterable[AllocatorOptions]) -> list[int]:
    """Return the most bytes reserved with each of several settings, on a device without limit.

    Long runs are replayed at the same time, one on each processor.

    Raises:
        ConfigError: As `replay` does.
    """

    def peak(options: AllocatorOptions) -> int:
        return replay(requests, options=options).peak_reserved.bytes

    each = list(settings)
    if len(each) < 2 or len(requests.kind) < _WORTH_THREADS:
        return [peak(options) for options in each]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(each), os.cpu_count() or 1), "xmem-replay") as threads:
        return list(threads.map(peak, each))
