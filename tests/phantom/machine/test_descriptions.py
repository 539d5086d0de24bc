"""That torch sees of a described GPU what the description says."""

from __future__ import annotations

import pytest

from nightly import most_nightly
from xmem.devices.gpus import find_device

# Attributes by number: what torch 2.6 does not show.
PROPERTIES = """
    import ctypes, json, torch

    cudart = ctypes.CDLL(None)

    def attribute(which, number):
        value = ctypes.c_int()
        assert cudart.cudaDeviceGetAttribute(ctypes.byref(value), which, number) == 0
        return value.value

    seen = []
    for number in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(number)
        seen.append({
            "name": p.name,
            "capability": [p.major, p.minor],
            "total_memory": p.total_memory,
            "multiprocessors": p.multi_processor_count,
            "l2": p.L2_cache_size,
            "registers": p.regs_per_multiprocessor,
            "threads_per_multiprocessor": p.max_threads_per_multi_processor,
            "warp": p.warp_size,
            "integrated": p.is_integrated,
            "shared": attribute(8, number),
            "shared_per_multiprocessor": attribute(81, number),
            "shared_optin": attribute(97, number),
            "clock": attribute(13, number),
            "uuid": str(p.uuid),
            "bus": attribute(33, number),
        })
    print(json.dumps([seen, torch.cuda.is_bf16_supported(including_emulation=False)]))
"""


@pytest.mark.parametrize(
    ("slug", "capability", "threads", "optin", "shared_per_multiprocessor", "l2", "bf16"),
    most_nightly(
        [
            ("t4", [7, 5], 1024, 65_536, 65_536, 4_194_304, False),
            ("h100", [9, 0], 2048, 232_448, 233_472, 52_428_800, True),
            ("rtx-3060", [8, 6], 1536, 101_376, 102_400, 2_359_296, True),
            ("rtx-4090", [8, 9], 1536, 101_376, 102_400, 75_497_472, True),
            ("a100-80gb", [8, 0], 2048, 166_912, 167_936, 41_943_040, True),
        ],
        at_once=2,
    ),
)
def test_torch_sees_the_description(
    phantom,
    slug: str,
    capability: list[int],
    threads: int,
    optin: int,
    shared_per_multiprocessor: int,
    l2: int,
    bf16: bool,
) -> None:
    device = find_device(slug)
    ran = phantom.run(PROPERTIES, gpu=slug)
    (seen,), has_bf16 = ran.result
    uuid = seen.pop("uuid")
    assert seen == {
        "name": device.full_name,
        "capability": capability,
        "total_memory": device.total_memory_bytes,
        "multiprocessors": device.multiprocessors,
        "l2": l2,
        "shared": 49_152,
        "shared_optin": optin,
        "shared_per_multiprocessor": shared_per_multiprocessor,
        "registers": 65_536,
        "threads_per_multiprocessor": threads,
        "warp": 32,
        "integrated": 0,
        "clock": device.attributes["ClockRate"],
        "bus": 1,
    }
    assert has_bf16 is bf16
    assert len(uuid) == 36
    assert ran.refused() == {}


def test_gpus_of_a_machine_are_told_apart(phantom) -> None:
    ran = phantom.run(PROPERTIES, gpu="h100", devices=3)
    seen, _ = ran.result
    assert len({card["uuid"] for card in seen}) == 3
    assert [card["bus"] for card in seen] == [1, 2, 3]


def test_file_of_the_user(phantom) -> None:
    path = phantom.folder / "my-gpu.toml"
    path.write_text(
        """
        full_name = "NVIDIA GeForce RTX 4080 SUPER"
        compute_capability = [8, 9]
        multiprocessors = 80
        total_memory_bytes = 16_852_844_544

        [attributes.measured]
        L2CacheSize = 67_108_864
        """
    )
    ran = phantom.run(PROPERTIES, gpu=str(path))
    (seen,), _ = ran.result
    assert (seen["name"], seen["multiprocessors"], seen["l2"]) == (
        "NVIDIA GeForce RTX 4080 SUPER",
        80,
        67_108_864,
    )
    assert seen["total_memory"] == 16_852_844_544
