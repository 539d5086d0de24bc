"""What the real caching allocator says of itself, on the phantom GPU: its peaks, and every request it got.

The profiler's ``[memory]`` events tell the size of the block that served a request, not what was asked for,
and no stream; the allocator's own history has both. Its peaks are kept across ``reset_peak_memory_stats``.
"""

from __future__ import annotations

import functools
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_PEAKS = {
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_active_bytes": "active_bytes.all.peak",
    "peak_requested_bytes": "requested_bytes.all.peak",
    "peak_segments": "segment.all.peak",
}
_COUNTERS = ("num_alloc_retries", "num_ooms")


class AllocatorRecord:
    """Follows the allocators of all devices from ``start`` on."""

    def __init__(self, assume: Callable[[str], None]) -> None:
        self._assume = assume
        self._before_reset: dict[int, dict[str, int]] = {}
        self._started = False
        self._interrupted = False
        self.empty_cache_ns: list[int] = []

    def install(self) -> None:
        """Follow what the script does to the allocator's statistics, history and cache."""
        self._follow_resets()
        self._follow_history()
        self._follow_empty_cache()

    def start(self) -> None:
        """Begin to record requests; CUDA is initialized."""
        self._started = True
        self._record("all", context=None, stacks="python")

    def peaks(self) -> list[dict[str, int]]:
        """One row for each device that was used."""
        rows = []
        for device in range(torch.cuda.device_count()):
            now = self._now(device)
            if now["peak_reserved_bytes"] > 0:
                rows.append({"device": device, **now})
        return rows

    def requests(self, device: int) -> dict[str, Any] | None:
        """Size as asked for and stream of every allocation on a device, in order; None if the history has
        holes."""
        if self._interrupted or not self._started:
            return None
        sizes, streams, numbers = [], [], {0: 0}
        for event in torch.cuda.memory._snapshot()["device_traces"][device]:
            if event["action"] == "alloc":
                sizes.append(event["size"])
                streams.append(numbers.setdefault(event["stream"], len(numbers)))
        return {"device": device, "size_bytes": sizes, "stream": streams if any(streams) else []}

    def dump(self, path: Path) -> None:
        """Write the allocator's snapshot, as ``torch.cuda.memory._dump_snapshot`` does."""
        with path.open("wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)

    def _now(self, device: int) -> dict[str, int]:
        statistics = torch.cuda.memory_stats(device)
        before = self._before_reset.get(device, {})
        peaks = {name: max(int(statistics.get(key, 0)), before.get(name, 0)) for name, key in _PEAKS.items()}
        return peaks | {name: int(statistics.get(name, 0)) for name in _COUNTERS}

    def _follow_resets(self) -> None:
        for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
            reset = getattr(torch._C, name, None)
            if reset is not None:
                setattr(torch._C, name, self._remembering(reset))

    def _remembering(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(reset)
        def remember_and_reset(device: int) -> Any:
            self._before_reset[device] = self._now(device)
            return reset(device)

        return remember_and_reset

    def _follow_history(self) -> None:
        self._record = torch.cuda.memory._record_memory_history

        @functools.wraps(self._record)
        def record(*args: Any, **options: Any) -> Any:
            self._interrupted = True
            self._assume("the script records the allocator's history itself: streams are not known")
            return self._record(*args, **options)

        torch.cuda.memory._record_memory_history = record

    def _follow_empty_cache(self) -> None:
        empty = torch._C._cuda_emptyCache

        @functools.wraps(empty)
        def note_and_empty(*args: Any) -> Any:
            self.empty_cache_ns.append(time.time_ns())
            return empty(*args)

        torch._C._cuda_emptyCache = note_and_empty


def allocator_settings() -> str:
    """``PYTORCH_CUDA_ALLOC_CONF`` (or its newer name) as the script's process has it."""
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
