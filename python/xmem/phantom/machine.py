"""The machine file of a phantom run: what the described GPUs answer when they are asked.

The format is that of ``csrc/phantom/machine/machine.hpp``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from xmem.cudnn.device_properties import UNKNOWN_NAME, cuda_attributes, cudnn_description
from xmem.devices.description import attribute_numbers
from xmem.devices.gpus import Device
from xmem.errors import ConfigError


def write_machine(
    path: Path,
    devices: Sequence[Device],
    *,
    driver_version: int,
    limit_bytes: int | None = None,
    cudnn_library: Path | None = None,
    most_waiting: int = 0,
) -> None:
    """Write the description of a machine with these GPUs, in order.

    Args:
        path: The file.
        devices: The GPUs; the same one may occur several times.
        driver_version: Version as ``cudaDriverGetVersion`` returns it: 13000 for CUDA 13.0.
        limit_bytes: Memory that each GPU hands out before it is out of memory; its size by default.
        cudnn_library: A ``libcudnn.so.9``, for the CUDA of the environment, that plans convolutions in
            place of the environment's own.
        most_waiting: How many launches of a stream may wait for a GPU that is behind the script; 0: it is
            done with everything as soon as it is issued.

    Raises:
        ConfigError: A GPU has no CUDA.
    """
    lines = [f"driver_version {driver_version}"]
    if cudnn_library is not None:
        lines.append(f"cudnn_library {cudnn_library}")
    if most_waiting:
        lines.append(f"most_waiting {most_waiting}")
    for number, device in enumerate(devices):
        lines += _device_lines(device, number, driver_version)
        if limit_bytes is not None:
            lines.append(f"limit_bytes {limit_bytes}")
    path.write_text("\n".join(lines) + "\n")


def machine_attributes(device: Device, number: int) -> dict[str, int]:
    """Return all CUDA attributes of a GPU at its place in a machine, by name.

    A GPU known by its size alone has the compute capability and the multiprocessors of an A100.

    Args:
        device: The GPU.
        number: Its place, from 0; every place has a PCI bus of its own.

    Raises:
        ConfigError: The GPU has no CUDA.
    """
    if not device.attributes:
        raise ConfigError(
            f"the {device.name} has no CUDA and cannot be a phantom GPU",
            "choose a GPU with CUDA, or use --mode real",
        )
    return cuda_attributes(device, number)


def _device_lines(device: Device, number: int, driver_version: int) -> list[str]:
    attributes = machine_attributes(device, number)
    by_number = {attribute_numbers()[name]: value for name, value in attributes.items()}
    name = device.full_name or UNKNOWN_NAME
    nvml_total = device.nvml_total_memory_bytes
    memory, clusters = device.total_memory_bytes, device.processing_clusters
    cudnn = cudnn_description(name, memory, attributes, number, driver_version, clusters)
    return [
        "device",
        f"name {name}",
        f"uuid {_uuid(name, number)}",
        f"total_memory_bytes {memory}",
        f"nvml_total_memory_bytes {nvml_total if nvml_total >= 0 else memory}",
        f"context_bytes {device.context_bytes}",
        *(f"attribute {which} {value}" for which, value in sorted(by_number.items())),
        f"cudnn {json.dumps(cudnn, separators=(',', ':'))}",
    ]


def _uuid(name: str, number: int) -> str:
    """Return a UUID that is the same in every run, and different for every place in the machine."""
    return hashlib.sha256(f"{name} {number}".encode()).hexdigest()[:32]
