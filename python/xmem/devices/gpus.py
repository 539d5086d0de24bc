"""The GPUs that an estimate can be for: what PyTorch sees of each one, and how sure we are of it.

The figures and their sources are in ``data/gpus``, one file per GPU, in folders by architecture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from xmem.devices.description import REQUIRED_ATTRIBUTES, Basis, Device, describe_device, parse_device
from xmem.errors import ConfigError
from xmem.files.package_data import DATA
from xmem.text.nearest import nearest
from xmem.text.units import MOST_BYTES, format_bytes, parse_bytes

__all__ = [
    "UNKNOWN_IS_LIKE",
    "Basis",
    "Device",
    "asked_device",
    "custom_device",
    "describe_device",
    "devices",
    "find_device",
    "read_device",
]

_MIB = 1024**2

# A GPU known by its size alone: between the contexts of a T4 (176 MiB) and of an H100 (769 MiB).
_UNKNOWN_CONTEXT_BYTES = 256 * _MIB
_UNKNOWN_KERNELS_BYTES = 26 * _MIB
UNKNOWN_IS_LIKE = "a100-40gb"

# Vendor and brand words, and everything that is neither letter nor digit, carry no information in a name.
_NOISE = re.compile(r"nvidia|geforce|tesla|amd|instinct|[^a-z0-9]")

# Of no other board.
_IDENTITY = ("GpuPciDeviceId", "GpuPciSubsystemId")


@cache
def devices() -> tuple[Device, ...]:
    """Return all GPUs known by name: related ones together, old to new, small to large."""
    return tuple(sorted(map(_device_of, _files()), key=_order))


def find_device(name: str) -> Device:
    """Return the GPU of that name; case, spaces, hyphens, underscores and vendor words do not matter.

    ``RTX 3060``, ``rtx_3060`` and ``NVIDIA GeForce RTX 3060`` are one GPU. A name that ends in ``.toml`` is a
    file that describes one, see ``read_device``.

    Raises:
        ConfigError: No GPU has this name, or it is the beginning of several names; or something is wrong with
            the file.
    """
    if name.endswith(".toml"):
        return read_device(name)
    if name in _files():  # one file to parse instead of all
        return _device_of(name)
    by_key = _devices_by_key()
    key = _key(name)
    if key in by_key:
        return by_key[key]
    candidates = {device.slug for known, device in by_key.items() if key and known.startswith(key)}
    if len(candidates) > 1:
        raise ConfigError(
            f"GPU {name!r} is ambiguous: several names begin with it",
            f"use one of {', '.join(sorted(candidates))}",
        )
    alike = [by_key[match].slug for match in nearest(key, by_key, count=6, least=0.5)]
    suggestions = list(dict.fromkeys([*candidates, *alike]))[:3]
    did_you_mean = f"did you mean {_either(suggestions)}? " if suggestions else ""
    others = "List all GPUs" if suggestions else "list all GPUs"
    raise ConfigError(
        f"unknown GPU {name!r}",
        f"{did_you_mean}{others} with 'xmem-fast gpus', or pass --capacity SIZE or a .toml file",
    )


def _either(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def read_device(path: str | Path) -> Device:
    """Read the GPU that a file describes (``docs/devices.md``).

    CUDA attributes of the board that the file leaves out are assumed to be those of the known GPU of the same
    compute capability with the nearest number of multiprocessors.

    Raises:
        ConfigError: The file cannot be read or is not a description; the message names the key and what to
            do.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"the GPU file {path} cannot be read ({reason})") from error
    device = parse_device(text, slug=str(path), where=str(path))
    if device.vendor == "NVIDIA":
        device = _completed(device)
        missing = [name for name in REQUIRED_ATTRIBUTES if name not in device.attributes]
        if missing:
            major, minor = device.compute_capability or (0, 0)
            raise ConfigError(
                f"{path}: compute capability {major}.{minor} is unknown",
                f"use one of {', '.join(_known_capabilities())}, or add the attributes {', '.join(missing)}",
            )
    return device


def custom_device(capacity_bytes: int, like: Device | None = None) -> Device:
    """Make a GPU of the given size, for cards without a name here and for limits below the whole card.

    Args:
        capacity_bytes: The memory that CUDA should report, including the context.
        like: The GPU whose other properties are taken. Without it the context is assumed, compute capability
            and multiprocessors are unknown, and the CUDA attributes are those of an A100 (8.0), all assumed.

    Raises:
        ConfigError: Not even the context fits, or the capacity is above ``MOST_BYTES``.
    """
    if capacity_bytes > MOST_BYTES:
        raise ConfigError(f"a capacity of {capacity_bytes} bytes is more memory than any machine has")
    base = like or _unknown_device(capacity_bytes)
    if capacity_bytes <= base.context_bytes:
        raise ConfigError(
            f"a capacity of {format_bytes(capacity_bytes)} is too small",
            f"use more than the {format_bytes(base.context_bytes)} that the CUDA context takes",
        )
    if like is None:
        return base
    return replace(
        like,
        name=f"{like.name} limited to {format_bytes(capacity_bytes)}",
        total_memory_bytes=capacity_bytes,
        total_memory_basis="given",
        total_memory_source="",
        nvml_total_memory_bytes=-1,
    )


def asked_device(gpu: str | None, capacity: int | str | None) -> Device | None:
    """Return the GPU that a user means by a name, a capacity, or both; None if there is neither.

    Args:
        gpu: A name that ``find_device`` knows.
        capacity: Bytes, or text such as ``11.5GiB``; it wins over the capacity of ``gpu``.

    Raises:
        ConfigError: No such GPU, no such size, or not even the context fits.
    """
    named = None if gpu is None else find_device(gpu)
    if capacity is None:
        return named
    size_bytes = parse_bytes(capacity) if isinstance(capacity, str) else capacity
    return custom_device(size_bytes, like=named)


def _unknown_device(capacity_bytes: int) -> Device:
    stand_in = find_device(UNKNOWN_IS_LIKE)
    attributes = {name: value for name, value in stand_in.attributes.items() if name not in _IDENTITY}
    return Device(
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
        attributes=attributes,
        attribute_bases=dict.fromkeys(attributes, "assumed"),
    )


def _completed(device: Device) -> Device:
    kin = [known for known in _with_cuda() if known.compute_capability == device.compute_capability]
    if not kin:
        return device
    nearest = min(kin, key=lambda known: abs(known.multiprocessors - device.multiprocessors))
    assumed = {
        name: value
        for name, value in nearest.attributes.items()
        if name not in device.attributes and name not in _IDENTITY
    }
    return replace(
        device,
        attributes={**device.attributes, **assumed},
        attribute_bases={**device.attribute_bases, **dict.fromkeys(assumed, "assumed")},
    )


def _with_cuda() -> Iterable[Device]:
    return (device for device in devices() if device.attributes)


def _known_capabilities() -> list[str]:
    capabilities = {device.compute_capability for device in _with_cuda() if device.compute_capability}
    return [f"{major}.{minor}" for major, minor in sorted(capabilities)]


@cache
def _files() -> dict[str, Path]:
    """Return the description of each GPU by its slug; the folders are architectures."""
    files = (file for folder in (DATA / "gpus").iterdir() if folder.is_dir() for file in folder.iterdir())
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


@cache
def _device_of(slug: str) -> Device:
    file = _files()[slug]
    return parse_device(file.read_text(encoding="utf-8"), slug=slug, where=f"data/gpus/{file.name}")


def _order(device: Device) -> tuple[object, ...]:
    families = ("NVIDIA GeForce", "NVIDIA RTX", "")
    family = next(number for number, words in enumerate(families) if device.full_name.startswith(words))
    return (
        device.vendor != "NVIDIA",
        family,
        device.compute_capability,
        device.total_memory_bytes,
        device.slug,
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
