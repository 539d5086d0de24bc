"""The GPUs that an estimate can be for: what PyTorch sees of each one's memory, and how sure we are of it.

The figures and their sources are in ``data/gpus.toml``.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Literal

from xmem.errors import ConfigError
from xmem.units import format_bytes

Basis = Literal["measured", "reported", "derived", "assumed", "given"]

_MIB = 1024**2

# A GPU known by its size alone: between the contexts of a T4 (176 MiB) and of an H100 (406 MiB).
_UNKNOWN_CONTEXT_BYTES = 256 * _MIB
_UNKNOWN_KERNELS_BYTES = 26 * _MIB

# Vendor and brand words, and everything that is neither letter nor digit, carry no information in a name.
_NOISE = re.compile(r"nvidia|geforce|tesla|amd|instinct|[^a-z0-9]")


@dataclass(frozen=True)
class Device:
    """A GPU as a target of estimates.

    Attributes:
        slug: The name that ``--gpu`` takes, such as ``rtx-3060``; empty for a GPU known by its size alone.
        name: The name for people, such as ``RTX 3060 12 GB``.
        full_name: What ``torch.cuda.get_device_name()`` returns.
        aliases: Other names that are accepted.
        architecture: Such as ``Ampere``; empty when unknown.
        compute_capability: Major and minor, None when unknown.
        multiprocessors: Streaming multiprocessors (compute units on AMD), -1 when unknown.
        total_memory_bytes: ``torch.cuda.get_device_properties().total_memory``.
        total_memory_basis: How the figure is known.
        total_memory_source: Where from, in words.
        context_bytes: What the process holds beside its segments: the context and the kernels it loads.
        loaded_kernels_bytes: The part of ``context_bytes`` that comes only as kernels are loaded.
        context_basis: How the two are known.
    """

    slug: str
    name: str
    full_name: str
    aliases: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int] | None
    multiprocessors: int
    total_memory_bytes: int
    total_memory_basis: Basis
    total_memory_source: str
    context_bytes: int
    loaded_kernels_bytes: int
    context_basis: Basis

    @property
    def usable_bytes(self) -> int:
        """What is left for segments once the context and the kernels are loaded."""
        return self.total_memory_bytes - self.context_bytes


@cache
def devices() -> tuple[Device, ...]:
    """All GPUs known by name, in the order of the data file (kin together, small to large)."""
    text = resources.files("xmem").joinpath("data/gpus.toml").read_text(encoding="utf-8")
    return tuple(
        Device(
            slug=slug,
            aliases=tuple(entry.pop("aliases", ())),
            compute_capability=tuple(entry.pop("compute_capability")),
            **entry,
        )
        for slug, entry in tomllib.loads(text).items()
    )


def find_device(name: str) -> Device:
    """The GPU of that name; case, spaces, hyphens, underscores and vendor words do not matter.

    ``RTX 3060``, ``rtx_3060`` and ``NVIDIA GeForce RTX 3060`` are one GPU.

    Raises:
        ConfigError: No GPU has this name, or it is the beginning of several names.
    """
    by_key = _devices_by_key()
    key = _key(name)
    if key in by_key:
        return by_key[key]
    candidates = {device.slug for known, device in by_key.items() if key and known.startswith(key)}
    if len(candidates) > 1:
        raise ConfigError(
            repr(name), f"one of {', '.join(sorted(candidates))}: several names begin like this"
        )
    nearest = [by_key[match].slug for match in difflib.get_close_matches(key, by_key, n=6, cutoff=0.5)]
    suggestions = list(dict.fromkeys([*candidates, *nearest]))[:3]
    such_as = f" such as {', '.join(suggestions)}" if suggestions else ""
    raise ConfigError(
        repr(name), f"a known GPU{such_as}; list them all with `xmem-fast gpus`, or give --capacity SIZE"
    )


def custom_device(capacity_bytes: int, like: Device | None = None) -> Device:
    """A GPU of the given size, for cards without a name here and for limits below the whole card.

    Args:
        capacity_bytes: The memory that CUDA shall report, context included.
        like: The GPU whose other properties are taken; without it the context is assumed.

    Raises:
        ConfigError: Not even the context fits.
    """
    base = like or Device(
        slug="",
        name=f"a GPU of {format_bytes(capacity_bytes)}",
        full_name="",
        aliases=(),
        architecture="",
        compute_capability=None,
        multiprocessors=-1,
        total_memory_bytes=capacity_bytes,
        total_memory_basis="given",
        total_memory_source="",
        context_bytes=_UNKNOWN_CONTEXT_BYTES,
        loaded_kernels_bytes=_UNKNOWN_KERNELS_BYTES,
        context_basis="assumed",
    )
    if capacity_bytes <= base.context_bytes:
        raise ConfigError(
            f"a capacity of {format_bytes(capacity_bytes)}",
            f"more than the {format_bytes(base.context_bytes)} that the CUDA context takes",
        )
    if like is None:
        return base
    return replace(
        like,
        name=f"{like.name} limited to {format_bytes(capacity_bytes)}",
        total_memory_bytes=capacity_bytes,
        total_memory_basis="given",
        total_memory_source="",
    )


def _key(name: str) -> str:
    return _NOISE.sub("", name.lower())


@cache
def _devices_by_key() -> dict[str, Device]:
    return {
        _key(name): device
        for device in devices()
        for name in (device.slug, device.name, device.full_name, *device.aliases)
    }
