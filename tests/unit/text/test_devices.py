"""The GPUs known by name, how names are read, and files of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmem.devices.description import REQUIRED_ATTRIBUTES, attribute_numbers
from xmem.devices.gpus import Device, custom_device, describe_device, devices, find_device
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
        assert device.context_basis in {"measured", "derived", "assumed"}
        assert device.total_memory_source


def test_kin_stand_together_old_to_new() -> None:
    slugs = [device.slug for device in devices()]
    assert slugs[:3] == ["rtx-2080-ti", "rtx-3060", "rtx-3090"]
    assert slugs.index("rtx-pro-6000") + 1 == slugs.index("v100-16gb")
    assert slugs[-2:] == ["b200", "mi300x"]


NVIDIA = [device for device in devices() if device.vendor == "NVIDIA"]


def test_gpus_of_nvidia_have_cuda_and_others_have_not() -> None:
    assert {device.slug for device in devices() if device.attributes} == {device.slug for device in NVIDIA}
    assert "mi300x" in {device.slug for device in devices() if not device.attributes}


@pytest.mark.parametrize("device", NVIDIA, ids=lambda device: device.slug)
class TestAttributes:
    def test_are_complete(self, device: Device) -> None:
        assert set(REQUIRED_ATTRIBUTES) <= set(device.attributes)
        assert device.attributes.keys() == NVIDIA[0].attributes.keys()
        assert device.attributes.keys() == device.attribute_bases.keys()
        assert device.attributes.keys() <= attribute_numbers().keys()
        assert device.attributes_source

    def test_are_those_of_one_chip(self, device: Device) -> None:
        a = device.attributes
        optin, largest = a["MaxSharedMemoryPerBlockOptin"], a["MaxSharedMemoryPerMultiprocessor"]
        assert a["MaxSharedMemoryPerBlock"] < optin <= largest - a["ReservedSharedMemoryPerBlock"]
        assert a["MaxThreadsPerMultiProcessor"] % (a["MaxBlocksPerMultiprocessor"] * a["WarpSize"]) == 0
        assert a["MaxPersistingL2CacheSize"] < a["L2CacheSize"]
        assert a["L2CacheSize"] % (1 << 18) == 0

    def test_board_is_plausible(self, device: Device) -> None:
        a = device.attributes
        assert 1_300_000 < a["ClockRate"] < 2_700_000
        assert a["GlobalMemoryBusWidth"] % 32 == 0
        bytes_per_second = 2_000 * a["MemoryClockRate"] * a["GlobalMemoryBusWidth"] // 8
        assert 200e9 < bytes_per_second < 9e12
        assert a["GpuPciDeviceId"] & 0xFFFF == 0x10DE
        assert (
            0 <= device.nvml_total_memory_bytes - device.total_memory_bytes < 0.06 * device.total_memory_bytes
        )

    def test_description_is_read_again(self, device: Device, tmp_path: Path) -> None:
        path = tmp_path / "gpu.toml"
        path.write_text(describe_device(device))
        read = find_device(str(path))
        assert read.slug == str(path)
        assert {**vars(read), "slug": device.slug} == vars(device)


@pytest.mark.parametrize(
    ("slug", "name", "value", "basis"),
    [
        ("rtx-3090", "MaxPersistingL2CacheSize", 4_718_592, "reported"),
        ("rtx-3060", "L2CacheSize", 2_359_296, "reported"),
        ("rtx-4090", "L2CacheSize", 75_497_472, "reported"),
        ("t4", "MaxThreadsPerMultiProcessor", 1_024, "measured"),
        ("v100-32gb", "MaxSharedMemoryPerBlockOptin", 98_304, "measured"),
        ("a100-80gb", "MaxSharedMemoryPerBlockOptin", 166_912, "measured"),
        ("h100", "ClockRate", 1_980_000, "reported"),
        ("b200", "MaxSharedMemoryPerMultiprocessor", 233_472, "published"),
    ],
)
def test_known_figures(slug: str, name: str, value: int, basis: str) -> None:
    device = find_device(slug)
    assert (device.attributes[name], device.attribute_bases[name]) == (value, basis)


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
    with pytest.raises(
        ConfigError, match=r"'a100' is ambiguous.*; use one of a100-40gb, a100-80gb, a100-pcie-40gb"
    ):
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
    with pytest.raises(ConfigError, match="list all GPUs with 'xmem-fast gpus'"):
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


def test_custom_device_keeps_the_attributes_of_what_it_is_like() -> None:
    whole = find_device("rtx-4090")
    device = custom_device(20 * GIB, like=whole)
    assert device.attributes == whole.attributes
    assert device.nvml_total_memory_bytes == -1


def test_gpu_of_a_size_is_like_an_a100() -> None:
    device = custom_device(24 * GIB)
    assert device.attributes["L2CacheSize"] == 40 * 1024**2
    assert set(device.attribute_bases.values()) == {"assumed"}
    assert "GpuPciDeviceId" not in device.attributes


def test_custom_device_needs_room_for_the_context() -> None:
    with pytest.raises(
        ConfigError, match=r"a capacity of 1\.00 KiB is too small; use more than the 256\.00 MiB"
    ):
        custom_device(1024)


SMALL = """
full_name = "NVIDIA GeForce RTX 4080 SUPER"
compute_capability = [8, 9]
multiprocessors = 80
total_memory_bytes = 16_852_844_544
"""


@pytest.fixture
def gpu_file(tmp_path: Path) -> Path:
    return tmp_path / "my-gpu.toml"


class TestFileOfTheUser:
    def test_needs_four_facts(self, gpu_file: Path) -> None:
        gpu_file.write_text(SMALL)
        device = find_device(str(gpu_file))
        assert device.name == "NVIDIA GeForce RTX 4080 SUPER"
        assert device.total_memory_basis == "given"
        assert device.context_bytes == (50 + 200 + 26) << 20
        assert device.context_basis == "assumed"
        assert device.attributes["MaxThreadsPerMultiProcessor"] == 1536

    def test_takes_the_rest_of_the_board_from_its_kin(self, gpu_file: Path) -> None:
        gpu_file.write_text(SMALL + "[attributes.measured]\nClockRate = 2_550_000\n")
        device = find_device(str(gpu_file))
        assert (device.attributes["ClockRate"], device.attribute_bases["ClockRate"]) == (
            2_550_000,
            "measured",
        )
        assert device.attributes["L2CacheSize"] == find_device("rtx-4080").attributes["L2CacheSize"]
        assert device.attribute_bases["L2CacheSize"] == "assumed"
        assert "GpuPciDeviceId" not in device.attributes

    def test_without_cuda(self, gpu_file: Path) -> None:
        gpu_file.write_text(SMALL + 'vendor = "AMD"\n')
        assert find_device(str(gpu_file)).attributes == {}

    def test_of_another_architecture_says_all_itself(self, gpu_file: Path) -> None:
        measured = describe_device(find_device("rtx-5090")).replace("[12, 0]", "[12, 1]")
        gpu_file.write_text(measured)
        assert find_device(str(gpu_file)).compute_capability == (12, 1)
        gpu_file.write_text(measured.replace("\nL2CacheSize", "\n# L2CacheSize"))
        with pytest.raises(
            ConfigError, match=r"12\.1 is unknown; use one of 7\.0, .*, or add the attributes L2CacheSize"
        ):
            find_device(str(gpu_file))

    def test_that_is_not_there(self) -> None:
        with pytest.raises(ConfigError, match=r"nowhere/gpu\.toml cannot be read \(No such file"):
            find_device("nowhere/gpu.toml")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                ("multiprocessors = 80", "multiprocessors = 0"),
                "multiprocessors = 0 is invalid; use a whole number of at",
            ),
            (
                ("multiprocessors = 80", "multiprocessors = true"),
                "multiprocessors = True is invalid; use a whole number",
            ),
            (("multiprocessors = 80", ""), "multiprocessors is missing; set it to a whole number"),
            (("multiprocessors", "multiprocesors"), "multiprocessors is missing"),
            (
                ("[8, 9]", "8.9"),
                r"compute_capability = 8\.9 is invalid; use major and minor, such as \[8, 6\]",
            ),
            (("full_name", "name = 'x'\nfullname"), "full_name is missing; set it to a string"),
            (("compute", "alias = []\ncompute"), r"unknown key alias; did you mean aliases\?"),
            (
                ("compute", "context_bytes = 20_000_000_000\ncompute"),
                "context_bytes = 20000000000 is not less than total_memory_bytes",
            ),
            (
                ("compute", "context_basis = 'sure'\ncompute"),
                "context_basis = 'sure' is invalid; use one of measured",
            ),
            (("RTX", "\\n"), r"full_name = .* is invalid; use a string of one line"),
            (("= 80", "= 80 80"), "is not valid TOML"),
        ],
    )
    def test_with_a_mistake(self, gpu_file: Path, change: tuple[str, str], message: str) -> None:
        gpu_file.write_text(SMALL.replace(*change, 1))
        with pytest.raises(ConfigError, match=message) as caught:
            find_device(str(gpu_file))
        assert str(caught.value).startswith(str(gpu_file))

    @pytest.mark.parametrize(
        ("tables", "message"),
        [
            (
                "[attributes]\nL2CacheSize = 1",
                r"attributes\.L2CacheSize is invalid; write a table \[attributes\.BASIS\]",
            ),
            (
                "[attributes.guessed]",
                r"attributes\.guessed is invalid; write a table .* one of measured, reported",
            ),
            (
                "[attributes.given]\nL2Cachesize = 1",
                "L2Cachesize is unknown; use a name of .* such as L2CacheSize",
            ),
            (
                "[attributes.given]\nL2CacheSize = -1",
                "L2CacheSize = -1 is invalid; use a whole number from 0",
            ),
            ("[attributes.given]\nL2CacheSize = 3_000_000_000", "L2CacheSize = 3000000000 is invalid; use"),
            (
                "[attributes.given]\nMultiProcessorCount = 80",
                "MultiProcessorCount is not allowed; set multiprocessors instead",
            ),
            ("[attributes.given]\nPciBusId = 1", "PciBusId is not allowed; remove the PCI address"),
            (
                "[attributes.given]\nL2CacheSize = 1\n[attributes.assumed]\nL2CacheSize = 1",
                "L2CacheSize appears under two bases; give it once",
            ),
            (
                "[attributes.given]\nMaxSharedMemoryPerBlockOptin = 102_400",
                "MaxSharedMemoryPerBlockOptin = 102400 is more than MaxShared",
            ),
            (
                "[attributes.given]\nMaxThreadsPerMultiProcessor = 1500",
                "= 1500 is not a positive multiple of 32",
            ),
        ],
    )
    def test_with_a_mistake_in_an_attribute(self, gpu_file: Path, tables: str, message: str) -> None:
        gpu_file.write_text(SMALL + tables + "\n")
        with pytest.raises(ConfigError, match=message):
            find_device(str(gpu_file))
