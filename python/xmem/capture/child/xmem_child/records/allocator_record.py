"""What the real caching allocator reports on the phantom GPU: its peaks, and every request it got.

The profiler's ``[memory]`` events tell the size of the block that served a request, not what was asked for,
and no stream; the allocator's own history has both. What the history lacks is followed where Python calls it:
emptied caches, limits, and who uses private pools. Peaks are kept across ``reset_peak_memory_stats``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .allocator_history import Limits, Mark, Requests, requests_of
from .pool_calls import PoolCalls, PoolNumbers, follow

_PEAKS = {
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_active_bytes": "active_bytes.all.peak",
    "peak_requested_bytes": "requested_bytes.all.peak",
    "peak_segments": "segment.all.peak",
}
_COUNTERS = ("num_alloc_retries", "num_ooms")
_NO_NUMBER = -1

# A comma outside of brackets, which hold lists.
_SEPARATOR = re.compile(r",(?![^\[]*\])")

_set_by_script: list[str] = []


class AllocatorRecord:
    """Follows the allocators of all devices from ``start`` on; ``behind`` says whether the GPU is behind the
    script, so that a free that waits for other streams may complete any time later."""

    def __init__(self, assume: Callable[[str], None], *, behind: bool = False) -> None:
        self._assume = assume
        self._behind = behind
        self._before_reset: dict[int, dict[str, int]] = {}
        self._requests_before_reset: dict[int, int] = {}
        self._started = False
        self._marks: dict[int, list[Mark]] = {}
        self._pools = PoolNumbers()
        self._fraction: dict[int, float] = {}

    def install(self) -> None:
        """Follow how the script uses the allocator's statistics, history, limits, cache and pools."""
        self._follow_resets()
        self._keep_history()
        self._follow_empty_cache()
        self._follow_fractions()
        self._follow_settings()
        PoolCalls(self._pools, self._position, self._mark).install()

    def start(self) -> None:
        """Begin to record requests; CUDA is initialized."""
        self._started = True
        self._record("all", context=None, stacks="python")

    def peaks(self) -> list[dict[str, int]]:
        """Return one row for each device that was used."""
        rows = []
        for device in range(torch.cuda.device_count()):
            now = self._now(device)
            if now["peak_reserved_bytes"] > 0:
                rows.append({"device": device, **now})
        return rows

    def requests(self) -> list[Requests]:
        """Return the requests to the allocator of each device that was used, in order."""
        if not self._started:
            return []
        snapshot = torch.cuda.memory._snapshot()
        self._pools.look(self._position, snapshot["segments"])
        return [
            requests_of(
                device,
                entries,
                self._marks.get(device, []),
                self._limits(device),
                functools.partial(self._pools.number, device),
                functools.partial(self._pools.of_segment, device),
                when_done=self._behind,
            )
            for device, entries in enumerate(snapshot["device_traces"])
            if entries
        ]

    def dump(self, path: Path) -> None:
        """Write the allocator's snapshot, as ``torch.cuda.memory._dump_snapshot`` does."""
        with path.open("wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)

    def _now(self, device: int) -> dict[str, int]:
        statistics = torch.cuda.memory_stats(device)
        before = self._before_reset.get(device, {})
        peaks = {name: max(int(statistics.get(key, 0)), before.get(name, 0)) for name, key in _PEAKS.items()}
        if self._behind:  # what waits for the GPU counts, as it does in the requests
            peaks["peak_allocated_bytes"] = peaks["peak_active_bytes"]
        return peaks | {name: int(statistics.get(name, 0)) for name in _COUNTERS}

    def _limits(self, device: int) -> Limits:
        """Return what bounds the memory of a device: the script's share of it, or else what others leave of
        it."""
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        bound = free + reserved
        fraction = self._fraction.get(device)
        if fraction is None:
            return Limits(bound)
        share = int(fraction * total)
        threshold = _collection_threshold()
        return Limits(min(bound, share), None if threshold == 0 else int(threshold * share))

    # Calls that the history does not show.

    def _mark(self, device: int, position: int, kind: str, number: int = _NO_NUMBER) -> None:
        """Note a call at its position among the requests of a device."""
        self._marks.setdefault(device, []).append(Mark(position, kind, number))

    def _mark_emptied(self) -> None:
        if torch.cuda.is_initialized():
            for device in range(torch.cuda.device_count()):
                self._mark(device, self._position(device), "empty_cache")

    def _position(self, device: int) -> int:
        statistics = torch._C._cuda_memoryStats(device)
        counts = statistics["allocation"]["all"]
        return self._requests_before_reset.get(device, 0) + int(counts["allocated"]) + int(counts["freed"])

    def _follow_resets(self) -> None:
        for name in ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"):
            follow(name, before=self._remember_peaks)
        for name in ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats"):
            follow(name, before=self._remember_requests)

    def _remember_peaks(self, device: int) -> None:
        self._before_reset[device] = self._now(device)

    def _remember_requests(self, device: int) -> None:
        self._requests_before_reset[device] = self._position(device)

    def _keep_history(self) -> None:
        """Keep the script's own use of the history from ending or shortening it."""
        self._record = torch.cuda.memory._record_memory_history

        @functools.wraps(self._record)
        def go_on(*_args: Any, **_options: Any) -> None:
            self._assume(
                "the script's own settings for the allocator's history were ignored: the history is on anyway"
            )

        torch.cuda.memory._record_memory_history = go_on

    def _follow_empty_cache(self) -> None:
        for name in ("_cuda_emptyCache", "_accelerator_emptyCache"):
            follow(name, before=self._mark_emptied)

    def _follow_fractions(self) -> None:
        def remember(fraction: float, device: int) -> None:
            self._fraction[device] = float(fraction)

        follow("_cuda_setMemoryFraction", before=remember)

    def _follow_settings(self) -> None:
        for name in (
            "_cuda_cudaCachingAllocator_set_allocator_settings",
            "_accelerator_setAllocatorSettings",
        ):
            follow(name, before=self._change_settings)

    def _change_settings(self, text: str) -> None:
        _set_by_script.append(text)
        if torch.cuda.is_initialized() and any(
            torch.cuda.memory_reserved(device) for device in range(torch.cuda.device_count())
        ):
            self._assume(
                f"the script changes settings of the allocator while it holds memory ({text}): the replay "
                "uses them from the start"
            )


def _collection_threshold() -> float:
    for setting in allocator_settings().split(","):
        name, _, value = setting.partition(":")
        if name.strip() == "garbage_collection_threshold":
            with contextlib.suppress(ValueError):
                return float(value)
    return 0.0


def allocator_settings() -> str:
    """Return ``PYTORCH_CUDA_ALLOC_CONF`` (or its newer name) as set in the script's process, with what the
    script gave to the allocator itself.
    """
    text = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if not _set_by_script:
        return text
    last = {}
    for setting in _SEPARATOR.split(",".join([text, *_set_by_script])):
        if setting.strip():
            last[setting.partition(":")[0].strip()] = setting.strip()
    return ",".join(last.values())
