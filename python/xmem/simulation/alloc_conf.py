"""``PYTORCH_CUDA_ALLOC_CONF``: the text that PyTorch reads, and the settings that a replay takes from it.

What a key means and which values are refused follows ``c10/core/AllocatorConfig.cpp`` and, before 2.9,
``c10/cuda/CUDAAllocatorConfig.cpp``. Keys that concern host memory, threads or CUDA graphs are accepted and
change nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Literal, NoReturn

from xmem.errors import ConfigError
from xmem.records import dataclass
from xmem.text.nearest import nearest
from xmem.text.units import MOST_BYTES

__all__ = ["DEFAULT_TORCH_VERSION", "RULE_RELEASES", "AllocatorOptions", "TieBreak", "parse"]

DEFAULT_TORCH_VERSION = "2.13"

TieBreak = Literal["address", "object_age", "segment_age"]

_MIB = 1 << 20
_DRIVER_PAGE = 2 * _MIB
_ROUNDUP_ENTRIES = 16


@dataclass(frozen=True)
class AllocatorOptions:
    """Settings of PyTorch's CUDA caching allocator that touch placement; the defaults are those of torch
    2.13.

    Attributes:
        tie_break: Which of several free blocks of one size is taken: the lowest ``address`` (torch up to
            2.11), the oldest ``object_age`` (2.12) or the oldest ``segment_age`` (from 2.13).
        large_segment_bytes: Segment for requests between 1 and 10 MiB, and page of expandable segments. Above
            10 MiB.
        max_split_bytes: Blocks of this size or more are never split; None for no limit.
        max_non_split_rounding_bytes: How much larger than its request such a block may be.
        roundup_power2_divisions: Entry i holds the steps between powers of two for sizes in
            [2**(20 + i), 2**(21 + i)); entry 0 also covers all below. 0 and 1 mean rounding to 512 bytes.
        garbage_collection_threshold: Fraction of the memory limit from which cached blocks are collected; 0 =
            off. Acts only together with `memory_fraction`.
        expandable_segments: Map pages into address ranges instead of asking for whole segments.
        memory_fraction: Fraction of the device's capacity that may be reserved; None for no limit of its own.
        throw_on_cudamalloc_oom: Fail at once, without freeing caches, where more than the device's whole
            memory would be reserved. Below that a `memory_fraction` acts as without this setting.
        newest_scope_first: Whether of several private pools that are open at once the last opened serves
            requests (torch from 2.10), else the first.
        every_scope_captures: Whether ``torch.cuda.use_mem_pool`` holds caches and waiting frees as the
            capture of a graph does (torch up to 2.12).
        sizes_with_slack: Whether requests are sizes of blocks, as a GPU's profiler trace has them: a block is
            then never larger than its request. No setting of PyTorch.
    """

    tie_break: TieBreak = "segment_age"
    large_segment_bytes: int = 20 * _MIB
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int = 20 * _MIB
    roundup_power2_divisions: tuple[int, ...] = (0,) * _ROUNDUP_ENTRIES
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    memory_fraction: float | None = None
    throw_on_cudamalloc_oom: bool = False
    newest_scope_first: bool = True
    every_scope_captures: bool = False
    sizes_with_slack: bool = False

    def as_without_private_pools(self) -> AllocatorOptions:
        """Return the same settings with the default for what only runs with private pools notice."""
        return replace(self, newest_scope_first=True, every_scope_captures=False)


@dataclass(frozen=True)
class _Rules:
    """Rules that differ between releases; the latest entry that is not newer than a version applies to it."""

    since: tuple[int, int]
    tie_break: TieBreak
    rest_starts_after_last_key: bool  # `>` in a list of roundup_power2_divisions
    whole_fraction_is_a_limit: bool  # of per_process_memory_fraction:1.0
    large_segment_is_a_size: bool  # the least for max_split_size_mb and max_non_split_rounding_mb
    newest_scope_first: bool  # among private pools that are open at once
    every_scope_captures: bool  # use_mem_pool too holds caches and waiting frees


_RULES = (
    _Rules((2, 0), "address", False, True, False, False, True),
    _Rules((2, 9), "address", True, True, True, False, True),
    _Rules((2, 10), "address", True, False, True, True, True),
    _Rules((2, 12), "object_age", True, False, True, True, True),
    _Rules((2, 13), "segment_age", True, False, True, True, False),
)

RULE_RELEASES = (
    *(f"{rules.since[0]}.{newer.since[1] - 1}" for rules, newer in pairwise(_RULES)),
    f"{_RULES[-1].since[0]}.{_RULES[-1].since[1]}",
)
"""The last release under each set of rules that this table knows, oldest first."""


@dataclass(frozen=True)
class _Setting:
    """One ``key:value`` of the text, and the reading of its value."""

    key: str
    value: str

    def refuse(self, hint: str, problem: str = "is invalid") -> NoReturn:
        raise ConfigError(f"{self.key}:{self.value} {problem}", hint)

    def boolean(self) -> bool:
        if self.value not in ("True", "False"):
            self.refuse("use True or False, capitalized")
        return self.value == "True"

    def mebibytes(self, above_or_at: int) -> int:
        number = int(self.value) if re.fullmatch(r"[0-9]{1,20}", self.value) else -1
        if number < above_or_at:
            self.refuse(f"use a whole number of MiB, at least {above_or_at}")
        return min(number * _MIB, MOST_BYTES)

    def fraction(self) -> float:
        try:
            return float(self.value)
        except ValueError:
            self.refuse("use a number between 0 and 1")


def _large_segment(setting: _Setting, options: AllocatorOptions, _rules: _Rules) -> AllocatorOptions:
    return replace(options, large_segment_bytes=setting.mebibytes(11))


def _max_split(setting: _Setting, options: AllocatorOptions, rules: _Rules) -> AllocatorOptions:
    return replace(options, max_split_bytes=setting.mebibytes(_least_split(options, rules)))


def _max_non_split_rounding(setting: _Setting, options: AllocatorOptions, rules: _Rules) -> AllocatorOptions:
    return replace(options, max_non_split_rounding_bytes=setting.mebibytes(_least_split(options, rules)))


def _least_split(options: AllocatorOptions, rules: _Rules) -> int:
    return options.large_segment_bytes // _MIB + (0 if rules.large_segment_is_a_size else 1)


def _garbage_collection(setting: _Setting, options: AllocatorOptions, _rules: _Rules) -> AllocatorOptions:
    threshold = setting.fraction()
    if not 0 < threshold < 1:
        setting.refuse("use a number above 0 and below 1, or leave the key out to turn collection off")
    return replace(options, garbage_collection_threshold=threshold)


def _memory_fraction(setting: _Setting, options: AllocatorOptions, rules: _Rules) -> AllocatorOptions:
    fraction = setting.fraction()
    if not 0 <= fraction <= 1:
        setting.refuse("use a number between 0 and 1")
    limits = fraction < 1 or rules.whole_fraction_is_a_limit
    return replace(options, memory_fraction=fraction if limits else None)


def _expandable(setting: _Setting, options: AllocatorOptions, _rules: _Rules) -> AllocatorOptions:
    return replace(options, expandable_segments=setting.boolean())


def _throw_on_oom(setting: _Setting, options: AllocatorOptions, _rules: _Rules) -> AllocatorOptions:
    return replace(options, throw_on_cudamalloc_oom=setting.boolean())


def _backend(setting: _Setting, options: AllocatorOptions, _rules: _Rules) -> AllocatorOptions:
    if setting.value == "cudaMallocAsync":
        setting.refuse(
            "use native, or remove the key, to estimate with PyTorch's own allocator",
            "cannot be estimated, because the driver's pool is not modeled",
        )
    if setting.value != "native":
        setting.refuse("use native")
    return options


def _roundup(setting: _Setting, options: AllocatorOptions, rules: _Rules) -> AllocatorOptions:
    listed = re.fullmatch(r"\[(.*)\]", setting.value)
    if listed is None:
        return replace(
            options, roundup_power2_divisions=(_power_of_two(setting, setting.value),) * _ROUNDUP_ENTRIES
        )
    table = [0] * _ROUNDUP_ENTRIES
    last: int | None = None
    for pair in listed[1].split(",") if listed[1] else ():
        size, separator, text = pair.partition(":")
        if not separator:
            setting.refuse("write pairs such as [256:1,512:2,>:4]")
        divisions = 0 if text == "0" else _power_of_two(setting, text)
        if size == ">":
            # Without a key before it the rest is behind the first entry all the same.
            first = (last or 0) + rules.rest_starts_after_last_key
            table[first:] = [divisions] * (_ROUNDUP_ENTRIES - first)
            continue
        index = min(_power_of_two(setting, size).bit_length() - 1, _ROUNDUP_ENTRIES - 1)
        if last is None:
            table[:index] = [divisions] * index
        table[index] = divisions
        last = index
    return replace(options, roundup_power2_divisions=tuple(table))


def _power_of_two(setting: _Setting, text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1 or number & (number - 1) or number > 2**30:
        setting.refuse(
            "use powers of two, such as 4 or [256:1,512:2,>:4]",
            f"has {text!r}, which is not a power of two up to 2^30",
        )
    return number


def _without_effect(_setting: _Setting, options: AllocatorOptions, _rules: _Rules) -> AllocatorOptions:
    return options


def _boolean_without_effect(setting: _Setting, options: AllocatorOptions, _rules: _Rules) -> AllocatorOptions:
    setting.boolean()
    return options


_Reader = Callable[[_Setting, AllocatorOptions, _Rules], AllocatorOptions]

# Every key, the first release that has it, and what reads its value. The large segment comes first: others
# are measured against it, whatever their order in the text.
_KEYS: dict[str, tuple[tuple[int, int], _Reader]] = {
    "large_segment_size_mb": ((2, 10), _large_segment),
    "backend": ((2, 0), _backend),
    "max_split_size_mb": ((2, 0), _max_split),
    "max_non_split_rounding_mb": ((2, 6), _max_non_split_rounding),
    "roundup_power2_divisions": ((2, 0), _roundup),
    "garbage_collection_threshold": ((2, 0), _garbage_collection),
    "expandable_segments": ((2, 0), _expandable),
    "per_process_memory_fraction": ((2, 9), _memory_fraction),
    "throw_on_cudamalloc_oom": ((2, 12), _throw_on_oom),
    "release_lock_on_cudamalloc": ((2, 0), _boolean_without_effect),
    "graph_capture_record_stream_reuse": ((2, 9), _boolean_without_effect),
    "expandable_segments_reserve": ((2, 14), _without_effect),
    "expandable_segments_reserve_by_class": ((2, 14), _without_effect),
    "pinned_use_cuda_host_register": ((2, 0), _boolean_without_effect),
    "pinned_num_register_threads": ((2, 0), _without_effect),
    "pinned_use_background_threads": ((2, 0), _boolean_without_effect),
    "pinned_reserve_segment_size_mb": ((2, 7), _without_effect),
    "pinned_max_round_threshold_mb": ((2, 13), _without_effect),
    "pinned_max_cached_size_mb": ((2, 13), _without_effect),
    "pinned_free_catch_all": ((2, 7), _without_effect),
}


def parse(text: str, torch_version: str = DEFAULT_TORCH_VERSION) -> AllocatorOptions:
    """Read the value of ``PYTORCH_CUDA_ALLOC_CONF`` as a release of PyTorch would.

    Args:
        text: ``key:value`` pairs separated by commas, such as
            ``max_split_size_mb:128,expandable_segments:True``. Empty for the defaults.
        torch_version: Release whose rules hold, such as ``2.13`` or ``2.6.0+cu124``.

    Raises:
        ConfigError: An unknown key, a key that the release does not have, a value that PyTorch refuses, or a
            setting that is not modelled.
    """
    version = release_of(torch_version)
    rules = [rule for rule in _RULES if rule.since <= version][-1]
    settings = {setting.key: setting for setting in _split(text)}
    for key in settings:
        _require_known(key, version)
    options = AllocatorOptions(
        tie_break=rules.tie_break,
        newest_scope_first=rules.newest_scope_first,
        every_scope_captures=rules.every_scope_captures,
    )
    for key, (_, read) in _KEYS.items():
        if key not in settings:
            continue
        options = read(settings[key], options, rules)
        if key == "large_segment_size_mb":
            options = replace(options, max_non_split_rounding_bytes=options.large_segment_bytes)
    if options.expandable_segments and options.large_segment_bytes % _DRIVER_PAGE:
        settings["large_segment_size_mb"].refuse(
            "use an even number",
            "cannot be combined with expandable_segments: the driver maps multiples of 2 MiB, and fails at "
            "the first large request otherwise",
        )
    return options


def release_of(text: str) -> tuple[int, int]:
    """Return the release that a version belongs to: ``2.6.0+cu124`` to (2, 6).

    Raises:
        ConfigError: The text is not a version, or is one before those that are modelled.
    """
    match = re.match(r"(\d+)\.(\d+)", text)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < _RULES[0].since:
        raise ConfigError(f"{text!r} is not a supported torch version", "use 2.0 or later, such as 2.13")
    return version


def _split(text: str) -> list[_Setting]:
    """Cut at the commas outside brackets; the last of a repeated key counts, as in PyTorch."""
    settings = []
    parts = re.split(r",(?![^\[]*\])", re.sub(r"\s", "", text))
    for part in parts if parts[-1] else parts[:-1]:  # a comma may end the text
        key, separator, value = part.partition(":")
        if not separator or not value:
            raise ConfigError(
                f"allocator setting {part!r} is not a key:value pair",
                "write pairs separated by commas, such as max_split_size_mb:128",
            )
        settings.append(_Setting(key, value))
    return settings


def _require_known(key: str, version: tuple[int, int]) -> None:
    if key not in _KEYS:
        near = nearest(key, _KEYS, least=0.0)[0]
        raise ConfigError(
            f"unknown allocator setting {key!r}", f"did you mean {near}? Use one of {', '.join(_KEYS)}"
        )
    since = _KEYS[key][0]
    if version < since:
        raise ConfigError(
            f"torch {version[0]}.{version[1]} has no allocator setting {key!r}",
            f"remove the setting, or name torch {since[0]}.{since[1]} or later",
        )
