"""The GPUs known by name, and how names are read."""

from __future__ import annotations

import pytest

from xmem.devices import custom_device, devices, find_device
from xmem.errors import ConfigError

GIB = 1024**3


COMMON = (
    "rtx-3060 rtx-4060 rtx-4070-ti rtx-4090 rtx-5090 t4 v100-16gb v100-32gb a10 l4 l40s a100-40gb a100-80gb"
    " h100 h200 b200 mi300x"
)


@pytest.mark.parametrize("slug", COMMON.split())
def test_the_common_gpus_are_known(slug: str) -> None:
    assert find_device(slug).slug == slug


@pytest.mark.parametrize(
    ("slug", "total_memory_bytes"),
    [("rtx-3060", 12_622_168_064), ("rtx-4060", 8_318_222_336), ("a100-40gb", 42_474_471_424)],
)
def test_measured_totals(slug: str, total_memory_bytes: int) -> None:
    device = find_device(slug)
    assert device.total_memory_bytes == total_memory_bytes
    assert device.total_memory_basis == "measured"


def test_figures_are_plausible_and_have_a_source() -> None:
    for device in devices():
        label_gb = int(device.name.split()[-2])
        assert 0.85 * label_gb * GIB < device.total_memory_bytes <= label_gb * GIB, device.slug
        assert 100 * 1024**2 < device.context_bytes < GIB, device.slug
        assert 0 < device.loaded_kernels_bytes < device.context_bytes, device.slug
        assert device.usable_bytes == device.total_memory_bytes - device.context_bytes
        assert device.total_memory_basis in {"measured", "reported", "derived"}
        assert device.context_basis in {"derived", "assumed"}
        assert device.total_memory_source


def test_every_name_finds_its_own_gpu() -> None:
    for device in devices():
        for name in (device.slug, device.name, device.full_name, *device.aliases):
            assert find_device(name) is device, name


@pytest.mark.parametrize(
    "name",
    [
        "RTX 3060",
        "rtx_3060",
        "RTX-3060",
        "GeForce RTX 3060",
        "NVIDIA GeForce RTX 3060",
        "rtx3060 12GB",
        "3060",
    ],
)
def test_spelling_does_not_matter(name: str) -> None:
    assert find_device(name).slug == "rtx-3060"


def test_a100_spellings() -> None:
    assert find_device("a100-80gb") is find_device("A100 80GB") is find_device("NVIDIA A100-SXM4-80GB")


def test_ambiguous_name_lists_the_candidates() -> None:
    with pytest.raises(ConfigError, match=r"'a100': expected one of a100-40gb, a100-80gb, a100-pcie-40gb"):
        find_device("a100")


@pytest.mark.parametrize(
    ("name", "suggestion"), [("rtx3060ti", "rtx-3060"), ("rtx 309", "rtx-3090"), ("h101", "h100")]
)
def test_unknown_name_suggests_the_nearest(name: str, suggestion: str) -> None:
    with pytest.raises(ConfigError, match=suggestion) as caught:
        find_device(name)
    assert "xmem-fast gpus" in str(caught.value)


@pytest.mark.parametrize("name", ["", "  ", "nvidia", "voodoo banshee"])
def test_hopeless_name_points_to_the_list(name: str) -> None:
    with pytest.raises(ConfigError, match="list them all with `xmem-fast gpus`"):
        find_device(name)


def test_custom_device_of_a_size() -> None:
    device = custom_device(24 * GIB)
    assert device.total_memory_bytes == 24 * GIB
    assert device.name == "a GPU of 24.00 GiB"
    assert device.compute_capability is None
    assert device.context_basis == "assumed"


def test_custom_device_keeps_what_it_is_like() -> None:
    whole = find_device("a100-80gb")
    device = custom_device(20 * GIB, like=whole)
    assert device.usable_bytes == 20 * GIB - whole.context_bytes
    assert device.compute_capability == (8, 0)
    assert device.slug == "a100-80gb"
    assert device.name == "A100 80 GB limited to 20.00 GiB"


def test_custom_device_needs_room_for_the_context() -> None:
    with pytest.raises(ConfigError, match=r"a capacity of 1\.00 KiB: expected more than the 256\.00 MiB"):
        custom_device(1024)
