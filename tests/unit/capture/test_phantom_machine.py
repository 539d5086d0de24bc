"""The machine file that a phantom run reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xmem.devices.description import attribute_numbers
from xmem.devices.gpus import custom_device, devices, find_device
from xmem.errors import ConfigError
from xmem.phantom.machine import write_machine

GIB = 1024**3


def machine_lines(path: Path) -> list[dict[str, list[str]]]:
    """The keys of the machine and of each of its GPUs, with all their values."""
    blocks: list[dict[str, list[str]]] = [{}]
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == "device":
            blocks.append({})
        else:
            blocks[-1].setdefault(key, []).append(value)
    return blocks


def attributes(block: dict[str, list[str]]) -> dict[int, int]:
    return {int(number): int(value) for number, value in (line.split() for line in block["attribute"])}


def test_numbers_are_those_of_cuda() -> None:
    numbers = attribute_numbers()
    assert (numbers["MaxThreadsPerBlock"], numbers["MultiProcessorCount"], numbers["L2CacheSize"]) == (
        1,
        16,
        38,
    )
    assert (numbers["MaxSharedMemoryPerBlockOptin"], numbers["ReservedSharedMemoryPerBlock"]) == (97, 111)
    assert len(set(numbers.values())) == len(numbers)


def test_gpus_differ_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "machine"
    write_machine(path, [find_device("h100")] * 8, driver_version=12080)
    machine, *cards = machine_lines(path)
    assert machine == {"driver_version": ["12080"]}
    assert len({card["uuid"][0] for card in cards}) == 8
    assert len({attributes(card)[attribute_numbers()["PciBusId"]] for card in cards}) == 8
    assert [json.loads(card["cudnn"][0])["cudaDeviceId"] for card in cards] == list(range(8))
    first = path.read_text()
    write_machine(path, [find_device("h100")] * 8, driver_version=12080)
    assert path.read_text() == first


def test_every_gpu_with_cuda_can_stand_there(tmp_path: Path) -> None:
    known = [device for device in devices() if device.attributes]
    write_machine(tmp_path / "machine", known, driver_version=13000)
    _, *cards = machine_lines(tmp_path / "machine")
    for device, card in zip(known, cards, strict=True):
        cudnn = json.loads(card["cudnn"][0])
        assert card["name"] == [device.full_name]
        assert card["nvml_total_memory_bytes"] == [str(device.nvml_total_memory_bytes)]
        assert attributes(card)[16] == cudnn["multiProcessorCount"] == device.multiprocessors
        assert (attributes(card)[75], attributes(card)[76]) == device.compute_capability
        assert cudnn["totalGlobalMem"] == device.total_memory_bytes
        assert cudnn["driverVer"] == 13000


def test_cudnn_reads_the_description() -> None:
    """The text that cuDNN 9.20 was seen to accept for this card."""
    from xmem.phantom.machine import cudnn_description, machine_attributes

    device = find_device("rtx-3060")
    assert cudnn_description(
        device.full_name, device.total_memory_bytes, machine_attributes(device, 0), 0, 12040
    ) == {
        "cudaDeviceId": 0,
        "deviceVer": 860,
        "driverVer": 12040,
        "deviceName": "NVIDIA GeForce RTX 3060",
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": 28,
        "smClockRateKHz": 1777000,
        "memClockRateKHz": 7501000,
        "l2CacheSize": 2359296,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": 101376,
        "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536,
        "pciDeviceId": 0,
        "maxCtasPerSM": 16,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 1536,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": 12622168064,
        "memBusWidth": 192,
        "memoryBusWidth": 192,
        "oversizedSharedMemoryPerBlock": 0,
    }


def test_limited_gpu_keeps_all_but_its_memory(tmp_path: Path) -> None:
    whole = find_device("rtx-4090")
    write_machine(tmp_path / "machine", [whole, custom_device(8 * GIB, like=whole)], driver_version=13000)
    _, card, limited = machine_lines(tmp_path / "machine")
    assert limited["total_memory_bytes"] == limited["nvml_total_memory_bytes"] == [str(8 * GIB)]
    assert {**attributes(limited), 33: 0} == {**attributes(card), 33: 0}


def test_gpu_of_a_size_is_like_an_a100(tmp_path: Path) -> None:
    write_machine(tmp_path / "machine", [custom_device(8 * GIB)], driver_version=13000)
    _, card = machine_lines(tmp_path / "machine")
    assert card["name"] == ["NVIDIA GPU"]
    assert (attributes(card)[75], attributes(card)[76], attributes(card)[16]) == (8, 0, 108)


def test_gpu_without_cuda_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="MI300X 192 GB has no CUDA and cannot be a phantom GPU; choose a GPU with CUDA"
    ):
        write_machine(tmp_path / "machine", [find_device("mi300x")], driver_version=13000)
