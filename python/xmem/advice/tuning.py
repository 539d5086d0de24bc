"""Search by replay for the ``PYTORCH_CUDA_ALLOC_CONF`` that makes a job need less memory.

Every setting of a grid is replayed on the target GPU. Ranked by the memory that the job then takes, the few
best and the defaults are also asked for the smallest GPU that they work on, found by bisection over the
capacity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import TypeVar

import numpy as np

from xmem.devices.gpus import Device
from xmem.errors import ConfigError
from xmem.records import dataclass
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.alloc_conf import parse as parse_alloc_conf
from xmem.simulation.replay import DeviceAction, Replay, Requests
from xmem.simulation.replay import replay as replay_requests

__all__ = ["SettingsOutcome", "Tuning", "candidates", "search", "single_settings"]

_MAX_SPLIT_MB = (20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024)
_ROUNDUP_DIVISIONS = (1, 2, 4, 8, 16, 32)
_LARGE_SEGMENT_MB = (12, 16, 32, 64, 128)
_GC_THRESHOLDS = (0.6, 0.7, 0.8, 0.9)

_PAGE_BYTES = 2 << 20  # a device gives memory in pages of this size
_SHORTLIST = 8
_NEGLIGIBLE = 0.005  # share of the best setting's need; less is not worth another key
_WORTHWHILE = 0.01  # share of the defaults' need; less is not worth a setting

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class SettingsOutcome:
    """Outcome of a job under one setting, on the target GPU.

    Attributes:
        alloc_conf: The setting, empty for PyTorch's defaults.
        fits: Whether the replay on the target ends without running out of memory.
        peak_reserved_bytes: Most memory that the allocator held; on a device without limit where the job
            does not fit.
        fragmentation_bytes: Reserved minus allocated bytes at that instant.
        device_allocations: Segments requested and pages mapped: calls that cost time.
        retries: Number of times that all caches were flushed before memory was found; each waits for the GPU.
        smallest_capacity_bytes: Least memory of a GPU on which the job completes, including the CUDA context,
            in steps of 2 MiB; -1 where it was not searched.
    """

    alloc_conf: str
    fits: bool
    peak_reserved_bytes: int
    fragmentation_bytes: int
    device_allocations: int
    retries: int
    smallest_capacity_bytes: int = -1

    @property
    def environment_line(self) -> str:
        """Line to paste into a shell."""
        return f"export PYTORCH_CUDA_ALLOC_CONF={self.alloc_conf}"


@dataclass(frozen=True)
class Tuning:
    """The result of a search.

    Attributes:
        device: The target.
        torch_version: PyTorch release whose rules apply.
        candidates: Number of settings replayed, not counting the defaults.
        fitting: Number of them that fit on the target.
        defaults: Outcome of PyTorch's defaults.
        ranked: The best settings with different outcomes, the recommended one first, whether or not they
            help.
        best: The first of them; None when none is worth setting.
    """

    device: Device
    torch_version: str
    candidates: int
    fitting: int
    defaults: SettingsOutcome
    ranked: tuple[SettingsOutcome, ...]
    best: SettingsOutcome | None

    @property
    def saved_peak_bytes(self) -> int:
        """Peak reserved bytes that the best setting saves, 0 when nothing helps."""
        return 0 if self.best is None else self.defaults.peak_reserved_bytes - self.best.peak_reserved_bytes

    @property
    def saved_capacity_bytes(self) -> int:
        """Reduction of the GPU size needed with the best setting, 0 when nothing helps."""
        if self.best is None:
            return 0
        return self.defaults.smallest_capacity_bytes - self.best.smallest_capacity_bytes


def candidates(device: Device, torch_version: str) -> list[str]:
    """Return the settings to try: those of a grid that the release has, fewer keys first, no defaults.

    ``garbage_collection_threshold`` acts only under a limit, so it comes with the fraction of the target that
    the CUDA context leaves.
    """
    accepted = [setting for setting in _grid(device) if _is_accepted(setting, torch_version)]
    return sorted(accepted, key=lambda setting: setting.count(":"))


def single_settings(torch_version: str) -> list[str]:
    """Return the settings of one key that the release has, whatever the device."""
    settings = [
        "expandable_segments:True",
        *(f"max_split_size_mb:{size}" for size in _MAX_SPLIT_MB),
        *(f"roundup_power2_divisions:{divisions}" for divisions in _ROUNDUP_DIVISIONS),
        *(f"large_segment_size_mb:{size}" for size in _LARGE_SEGMENT_MB),
    ]
    return [setting for setting in settings if _is_accepted(setting, torch_version)]


def search(
    requests: Requests,
    device: Device,
    torch_version: str,
    *,
    unsplit: Requests | None = None,
    outside_bytes: int = 0,
    settings_of: str | None = None,
    sizes_with_slack: bool = False,
) -> Tuning:
    """Replay every candidate on the target and find the settings that need least memory.

    Settings that fit on the target are ranked by peak reserved bytes there, then by retries and device
    allocations; where none fits, by the smallest capacity that works. Equal outcomes are shown once, under
    the setting with fewest keys; of those within half a percent of the best, the one with fewest keys leads.

    Args:
        requests: Requests of the job.
        device: The target.
        torch_version: PyTorch version that will run the job.
        unsplit: Requests in place of these for settings that limit which blocks may be split.
        outside_bytes: Memory that the card holds beside the context and the allocator's reserved memory.
        settings_of: The release whose settings are tried, if it may be an older one.
        sizes_with_slack: Whether the requests are sizes of blocks (``AllocatorOptions``).

    Raises:
        ConfigError: The version is invalid.
    """
    texts = ["", *candidates(device, settings_of or torch_version)]
    taken_bytes = device.context_bytes + outside_bytes
    trial = _Trial(requests, unsplit or requests, device, torch_version, taken_bytes, sizes_with_slack)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        outcomes = _map(threads, trial.on_target, texts)
        some_fit = any(outcome.fits for outcome in outcomes)
        usable = _distinct(sorted((o for o in outcomes[1:] if o.fits or not some_fit), key=_cost))
        shortlist = _simplest_first(usable, lambda outcome: outcome.peak_reserved_bytes)[:_SHORTLIST]
        defaults, *ranked = _map(threads, trial.with_capacity, [outcomes[0], *shortlist])
    if not some_fit:
        ranked.sort(key=lambda outcome: outcome.smallest_capacity_bytes)
        ranked = _simplest_first(ranked, lambda outcome: outcome.smallest_capacity_bytes)
    return Tuning(
        device=device,
        torch_version=torch_version,
        candidates=len(texts) - 1,
        fitting=sum(outcome.fits for outcome in outcomes[1:]),
        defaults=defaults,
        ranked=tuple(ranked),
        best=ranked[0] if ranked and _helps(ranked[0], defaults) else None,
    )


def _grid(device: Device) -> Iterator[str]:
    def settings(**values: object) -> str:
        return ",".join(f"{key}:{value}" for key, value in values.items() if value is not None)

    for expandable, split, divisions in product(
        (None, True), (None, *_MAX_SPLIT_MB), (None, *_ROUNDUP_DIVISIONS)
    ):
        setting = settings(
            expandable_segments=expandable, max_split_size_mb=split, roundup_power2_divisions=divisions
        )
        if setting:
            yield setting
    for segment, expandable, split in product(_LARGE_SEGMENT_MB, (None, True), (None, 128, 512)):
        yield settings(large_segment_size_mb=segment, expandable_segments=expandable, max_split_size_mb=split)
    fraction = min(int(100 * device.usable_bytes / device.total_memory_bytes), 99) / 100
    for threshold, split, divisions in product(_GC_THRESHOLDS, (None, 64, 128, 256, 512), (None, 4, 8)):
        yield settings(
            garbage_collection_threshold=threshold,
            per_process_memory_fraction=fraction,
            max_split_size_mb=split,
            roundup_power2_divisions=divisions,
        )


def _is_accepted(setting: str, torch_version: str) -> bool:
    try:
        parse_alloc_conf(setting, torch_version)
    except ConfigError:
        return False
    return True


@dataclass(frozen=True)
class _Trial:
    """The job on the target, or on a device of another size with as much memory taken."""

    requests: Requests
    unsplit: Requests
    device: Device
    torch_version: str
    taken_bytes: int
    sizes_with_slack: bool

    def on_target(self, alloc_conf: str) -> SettingsOutcome:
        options = self._options(alloc_conf)
        replayed = self._replay(options, self.device.total_memory_bytes)
        fits = replayed.oom is None
        if not fits:
            replayed = self._without_limit(options)
        at = replayed.peak_reserved.request
        asked = (DeviceAction.SEGMENT_ALLOC, DeviceAction.SEGMENT_MAP)
        return SettingsOutcome(
            alloc_conf=alloc_conf,
            fits=fits,
            peak_reserved_bytes=replayed.peak_reserved.bytes,
            fragmentation_bytes=int(
                replayed.timeline.reserved_bytes[at] - replayed.timeline.allocated_bytes[at]
            ),
            device_allocations=int(np.isin(replayed.events.action, asked).sum()),
            retries=replayed.statistics["num_alloc_retries"],
        )

    def with_capacity(self, outcome: SettingsOutcome) -> SettingsOutcome:
        """Return the outcome with its smallest capacity, assuming that more memory is never worse."""
        options = self._options(outcome.alloc_conf)
        unlimited = self._without_limit(options)
        share = options.memory_fraction or 1.0
        fails = unlimited.peak_requested.bytes // _PAGE_BYTES - 1
        works = -(-int(unlimited.peak_reserved.bytes / share) // _PAGE_BYTES)
        while not self._works(options, works):
            fails, works = works, works + works // 8 + 1
        while works - fails > 1:
            middle = (fails + works) // 2
            if self._works(options, middle):
                works = middle
            else:
                fails = middle
        return replace(outcome, smallest_capacity_bytes=self.taken_bytes + works * _PAGE_BYTES)

    def _options(self, alloc_conf: str) -> AllocatorOptions:
        options = parse_alloc_conf(alloc_conf, self.torch_version)
        return replace(options, sizes_with_slack=self.sizes_with_slack)

    def _works(self, options: AllocatorOptions, pages: int) -> bool:
        if pages < 1:
            return False
        capacity = self.taken_bytes + pages * _PAGE_BYTES
        return self._replay(options, capacity).oom is None

    def _replay(self, options: AllocatorOptions, capacity_bytes: int) -> Replay:
        return replay_requests(
            self._requests(options),
            options=options,
            capacity_bytes=capacity_bytes,
            other_bytes=self.taken_bytes,
        )

    def _without_limit(self, options: AllocatorOptions) -> Replay:
        return replay_requests(self._requests(options), options=replace(options, memory_fraction=None))

    def _requests(self, options: AllocatorOptions) -> Requests:
        return self.requests if options.max_split_bytes is None else self.unsplit


def _map(threads: ThreadPoolExecutor, of: Callable[[_T], _R], values: Iterable[_T]) -> list[_R]:
    return list(threads.map(of, values))


def _cost(outcome: SettingsOutcome) -> tuple[int, int, int]:
    return outcome.peak_reserved_bytes, outcome.retries, outcome.device_allocations


def _distinct(outcomes: Sequence[SettingsOutcome]) -> list[SettingsOutcome]:
    """Return the first of the outcomes that are equal."""
    first: dict[tuple[int, int, int, int], SettingsOutcome] = {}
    for outcome in outcomes:
        first.setdefault((*_cost(outcome), outcome.fragmentation_bytes), outcome)
    return list(first.values())


def _simplest_first(
    ranked: list[SettingsOutcome], need: Callable[[SettingsOutcome], int]
) -> list[SettingsOutcome]:
    """Move the setting with fewest keys to the front, among those that need hardly more than the best."""
    if not ranked:
        return []
    enough = (1 + _NEGLIGIBLE) * need(ranked[0])
    simplest = min((o for o in ranked if need(o) <= enough), key=lambda o: o.alloc_conf.count(":"))
    return [simplest, *(outcome for outcome in ranked if outcome is not simplest)]


def _helps(outcome: SettingsOutcome, defaults: SettingsOutcome) -> bool:
    if outcome.fits and not defaults.fits:
        return True
    if outcome.fits:
        saved = defaults.peak_reserved_bytes - outcome.peak_reserved_bytes
        return saved >= _WORTHWHILE * defaults.peak_reserved_bytes
    saved = defaults.smallest_capacity_bytes - outcome.smallest_capacity_bytes
    return saved >= _WORTHWHILE * defaults.smallest_capacity_bytes
