"""A GPU as cuDNN reads it, the text of ``CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION``, and its CUDA
attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xmem.devices.description import Device
from xmem.devices.gpus import UNKNOWN_IS_LIKE, find_device

# Name of a GPU that is known by its size alone.
UNKNOWN_NAME = "NVIDIA GPU"


def cuda_attributes(device: Device, number: int) -> dict[str, int]:
    """Return all CUDA attributes of a GPU at its place in a machine, by name.

    A GPU known by its size alone has the compute capability, the multiprocessors and the attributes of an
    A100.

    Args:
        device: The GPU; for one without CUDA, nothing that is returned is valid.
        number: Its place, from 0; every place has a PCI bus of its own.
    """
    stand_in = find_device(UNKNOWN_IS_LIKE)
    major, minor = device.compute_capability or stand_in.compute_capability or (8, 0)
    return {
        **device.attributes,
        "MultiProcessorCount": (device if device.multiprocessors > 0 else stand_in).multiprocessors,
        "ComputeCapabilityMajor": major,
        "ComputeCapabilityMinor": minor,
        "PciDomainId": 0,
        "PciBusId": number + 1,
        "PciDeviceId": 0,
    }


def cudnn_description(
    name: str,
    total_memory_bytes: int,
    attributes: Mapping[str, int],
    number: int,
    driver_version: int,
    processing_clusters: Sequence[int] = (),
) -> dict[str, object]:
    """Describe a device as cuDNN 9.8 to 9.28 reads it: each version takes the members that it knows and
    refuses a text that lacks one. New in 9.28: ``memoryBusWidth``, and shared memory beyond the limit of a
    block, which no described GPU has.

    Args:
        name: Name of the device.
        total_memory_bytes: Size of its memory.
        attributes: CUDA's attributes by name, from `cuda_attributes`.
        number: Its place in the machine, from 0.
        driver_version: Version as ``cudaDriverGetVersion`` returns it: 13000 for CUDA 13.0.
        processing_clusters: Multiprocessors of each processing cluster, for xMem's helper: cuDNN does not
            read them here; empty: spread evenly.
    """
    capability = (attributes["ComputeCapabilityMajor"], attributes["ComputeCapabilityMinor"])
    return {
        "cudaDeviceId": number,
        "deviceVer": 100 * capability[0] + 10 * capability[1],
        "driverVer": driver_version,
        "deviceName": name,
        "maxGridSize": [attributes[f"MaxGridDim{axis}"] for axis in "XYZ"],
        "maxBlockSize": [attributes[f"MaxBlockDim{axis}"] for axis in "XYZ"],
        "regsPerBlock": attributes["MaxRegistersPerBlock"],
        "multiProcessorCount": attributes["MultiProcessorCount"],
        "smClockRateKHz": attributes["ClockRate"],
        "memClockRateKHz": attributes["MemoryClockRate"],
        "l2CacheSize": attributes["L2CacheSize"],
        "warpSize": attributes["WarpSize"],
        "maxSharedMemoryPerBlock": attributes["MaxSharedMemoryPerBlock"],
        "maxSharedMemoryPerBlockOptin": attributes["MaxSharedMemoryPerBlockOptin"],
        "reservedSharedMemoryPerBlock": attributes["ReservedSharedMemoryPerBlock"],
        "maxRegistersPerSM": attributes["MaxRegistersPerMultiprocessor"],
        "pciDeviceId": attributes["PciDeviceId"],
        "maxCtasPerSM": attributes["MaxBlocksPerMultiprocessor"],
        "maxThreadsPerBlock": attributes["MaxThreadsPerBlock"],
        "maxThreadsPerSM": attributes["MaxThreadsPerMultiProcessor"],
        "isTccDriver": attributes["TccDriver"],
        "supportCoopLaunch": attributes["CooperativeLaunch"],
        "totalGlobalMem": total_memory_bytes,
        "memBusWidth": attributes["GlobalMemoryBusWidth"],
        "memoryBusWidth": attributes["GlobalMemoryBusWidth"],
        "oversizedSharedMemoryPerBlock": 0,
        **({"processingClusters": list(processing_clusters)} if processing_clusters else {}),
    }
