"""The machine file of a phantom run: what the described GPUs answer when they are asked.

The format is that of ``csrc/phantom/machine/machine.hpp``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from xmem.devices import Device

_DEFAULT_CAPABILITY = (8, 0)


def write_machine(
    path: Path, devices: Sequence[Device], *, driver_version: int, cudnn_library: Path | None = None
) -> None:
    """Write the description of a machine with these GPUs, in order.

    ``cudnn_library`` names a ``libcudnn.so.9`` of version 9.8 or newer, for the CUDA of the environment. It
    is asked for plans, in a process of its own, where the environment's cuDNN cannot plan without a device.
    """
    lines = [f"driver_version {driver_version}"]
    if cudnn_library is not None:
        lines.append(f"cudnn_library {cudnn_library}")
    for number, device in enumerate(devices):
        lines += _device_lines(device, number)
    path.write_text("\n".join(lines) + "\n")


def _device_lines(device: Device, number: int) -> list[str]:
    attributes = _attributes(device, number)
    return [
        "device",
        f"name {device.full_name}",
        f"uuid {hashlib.sha256(f'{device.full_name} {number}'.encode()).hexdigest()[:32]}",
        f"total_memory_bytes {device.total_memory_bytes}",
        f"context_bytes {device.context_bytes}",
        *(f"attribute {which} {value}" for which, value in sorted(attributes.items())),
        f"cudnn {json.dumps(_cudnn_description(device, attributes), separators=(',', ':'))}",
    ]


def _attributes(device: Device, number: int) -> dict[int, int]:
    major, minor = device.compute_capability or _DEFAULT_CAPABILITY
    consumer = (major, minor) in ((8, 6), (8, 9), (12, 0))
    shared = {
        (7, 0): 98304,
        (7, 5): 65536,
        (8, 0): 167936,
        (8, 6): 102400,
        (8, 9): 102400,
        (9, 0): 233472,
        (10, 0): 233472,
        (12, 0): 102400,
    }.get((major, minor), 167936)
    threads = 1024 if (major, minor) == (7, 5) else 1536 if consumer else 2048
    return {
        1: 1024,
        2: 1024,
        3: 1024,
        4: 64,
        5: 2147483647,
        6: 65535,
        7: 65535,
        8: 49152,
        9: 65536,
        10: 32,
        11: 2147483647,
        12: 65536,
        13: 1777000,
        14: 512,
        15: 1,
        16: device.multiprocessors if device.multiprocessors > 0 else 108,
        19: 1,
        30: 512,
        31: 1,
        33: number + 1,
        36: 7501000,
        37: 192,
        38: 2359296,
        39: threads,
        40: 2,
        41: 1,
        51: 32,
        75: major,
        76: minor,
        78: 1,
        79: 1,
        80: 1,
        81: shared,
        82: 65536,
        83: 1,
        89: 1,
        90: 1,
        91: 1,
        95: 1,
        97: shared - 1024,
        99: 1,
        102: 1,
        103: 1,
        106: 16 if threads <= 1536 else 32,
        111: 1024,
        115: 1,
        119: 9,
        120: int(major >= 9),
        125: 1,
        132: 0,
    }


def _cudnn_description(device: Device, attributes: dict[int, int]) -> dict[str, object]:
    """cuDNN's own description of a device, as its backend reads it (see the reference on cuDNN without a
    GPU)."""
    major, minor = attributes[75], attributes[76]
    return {
        "cudaDeviceId": 0,
        "deviceVer": 100 * major + 10 * minor,
        "driverVer": 13000,
        "deviceName": device.full_name,
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": attributes[16],
        "smClockRateKHz": attributes[13],
        "memClockRateKHz": attributes[36],
        "l2CacheSize": attributes[38],
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": attributes[97],
        "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536,
        "pciDeviceId": 0,
        "maxCtasPerSM": attributes[106],
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": attributes[39],
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": device.total_memory_bytes,
        "memBusWidth": attributes[37],
    }
