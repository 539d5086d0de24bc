"""What bounds how many blocks a multiprocessor holds: ``data/occupancy_limits.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import cast

from xmem.devices.description import architecture_attributes
from xmem.devices.gpus import Device
from xmem.errors import ConfigError
from xmem.files.documents import parse_toml
from xmem.files.package_data import read_data


@dataclass(frozen=True, slots=True)
class Limits:
    """What one multiprocessor has, and in which units it is given away.

    Attributes:
        compute_capability: Major and minor.
        warp_size: Threads of a warp.
        warps: Most resident warps.
        blocks: Most resident blocks.
        registers: 32-bit registers.
        registers_per_block: Most registers of one block.
        register_unit: Registers are given to a warp in multiples of this.
        sub_partitions: Parts of the multiprocessor, each with an equal share of the registers.
        shared_bytes: Shared memory.
        shared_bytes_per_block: Most shared memory of a block that did not opt in to more.
        shared_bytes_opt_in: Most shared memory of a block.
        reserved_shared_bytes: What the system keeps of shared memory per block.
        shared_unit: Shared memory is given to a block in multiples of this many bytes.
    """

    compute_capability: tuple[int, int]
    warp_size: int
    warps: int
    blocks: int
    registers: int
    registers_per_block: int
    register_unit: int
    sub_partitions: int
    shared_bytes: int
    shared_bytes_per_block: int
    shared_bytes_opt_in: int
    reserved_shared_bytes: int
    shared_unit: int


def known_capabilities() -> tuple[tuple[int, int], ...]:
    """Return the compute capabilities whose limits are known, old to new."""
    return tuple(sorted(_capability(key) for key in _tables() if key != "common"))


@cache
def limits_of(compute_capability: tuple[int, int]) -> Limits:
    """Return the limits of a compute capability.

    Raises:
        ConfigError: They are not known.
    """
    major, minor = compute_capability
    tables = _tables()
    key = f"{major}.{minor}"
    if key not in tables:
        known = ", ".join(f"{major}.{minor}" for major, minor in known_capabilities())
        raise ConfigError(
            f"the occupancy limits of compute capability {key} are unknown",
            f"use a GPU of compute capability {known}",
        )
    found = {**architecture_attributes(compute_capability), **tables["common"], **tables[key]}
    return Limits(
        compute_capability=compute_capability,
        warp_size=found["WarpSize"],
        warps=found["MaxThreadsPerMultiProcessor"] // found["WarpSize"],
        blocks=found["MaxBlocksPerMultiprocessor"],
        registers=found["MaxRegistersPerMultiprocessor"],
        registers_per_block=found["MaxRegistersPerBlock"],
        register_unit=found["register_unit"],
        sub_partitions=found["sub_partitions"],
        shared_bytes=found["MaxSharedMemoryPerMultiprocessor"],
        shared_bytes_per_block=found["MaxSharedMemoryPerBlock"],
        shared_bytes_opt_in=found["MaxSharedMemoryPerBlockOptin"],
        reserved_shared_bytes=found["ReservedSharedMemoryPerBlock"],
        shared_unit=found["shared_memory_unit"],
    )


def limits_of_device(device: Device) -> Limits:
    """Return the limits of a GPU.

    Raises:
        ConfigError: The GPU is not NVIDIA's, or its compute capability is unknown.
    """
    if device.vendor != "NVIDIA" or device.compute_capability is None:
        raise ConfigError(
            f"occupancy is not known for {device.name}",
            "name an NVIDIA GPU of 'xmem-fast gpus', which has a compute capability",
        )
    return limits_of(device.compute_capability)


def _capability(key: str) -> tuple[int, int]:
    major, minor = map(int, key.split("."))
    return major, minor


@cache
def _tables() -> dict[str, dict[str, int]]:
    text = read_data("occupancy_limits.toml")
    return cast(dict[str, dict[str, int]], parse_toml(text))
