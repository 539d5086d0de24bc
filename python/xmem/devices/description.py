"""The description of one GPU, and the TOML file that holds it.

``docs/devices.md`` describes the file. Each GPU known by name has one in ``data/gpus``; what follows from the
compute capability is kept once in ``data/architectures.toml``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from typing import Any, Literal, TypeVar, cast, get_args

from xmem.errors import ConfigError
from xmem.files.documents import parse_toml
from xmem.files.package_data import read_data
from xmem.records import dataclass
from xmem.text.nearest import nearest

Basis = Literal["measured", "reported", "published", "derived", "assumed", "given"]

# Attributes that the phantom GPU and cuDNN compute with: a CUDA device's description is useless without them.
REQUIRED_ATTRIBUTES = (
    "MaxThreadsPerBlock",
    "MaxBlockDimX",
    "MaxBlockDimY",
    "MaxBlockDimZ",
    "MaxGridDimX",
    "MaxGridDimY",
    "MaxGridDimZ",
    "MaxSharedMemoryPerBlock",
    "MaxSharedMemoryPerBlockOptin",
    "MaxSharedMemoryPerMultiprocessor",
    "ReservedSharedMemoryPerBlock",
    "MaxRegistersPerBlock",
    "MaxRegistersPerMultiprocessor",
    "MaxThreadsPerMultiProcessor",
    "MaxBlocksPerMultiprocessor",
    "WarpSize",
    "ClockRate",
    "MemoryClockRate",
    "GlobalMemoryBusWidth",
    "L2CacheSize",
    "CooperativeLaunch",
    "TccDriver",
)

# Attributes that are not written as attributes, and how they are expressed instead.
_PCI_ADDRESS = "remove the PCI address, which belongs to a machine and not to its GPUs"
_SAID_ELSEWHERE = {
    "MultiProcessorCount": "set multiprocessors instead",
    "ComputeCapabilityMajor": "set compute_capability instead",
    "ComputeCapabilityMinor": "set compute_capability instead",
    "PciBusId": _PCI_ADDRESS,
    "PciDeviceId": _PCI_ADDRESS,
    "PciDomainId": _PCI_ADDRESS,
}

_MIB = 1024**2
_LARGEST_ATTRIBUTE = 2**31 - 1

# A context reserves local memory for every multiprocessor: the line through the RTX 3060 and the RTX 4060.
_CONTEXT_BYTES = 50 * _MIB
_CONTEXT_BYTES_PER_MULTIPROCESSOR = 5 * _MIB // 2
_KERNELS_BYTES = 26 * _MIB


@dataclass(frozen=True)
class Device:
    """A GPU as a target of estimates.

    Attributes:
        slug: What ``--gpu`` takes: a name such as ``rtx-3060`` or a file; empty for a GPU known by its size
            alone.
        name: The name for people, such as ``RTX 3060 12 GB``.
        full_name: What ``torch.cuda.get_device_name()`` returns.
        aliases: Other names that are accepted.
        architecture: Name such as ``Ampere``; empty when unknown.
        compute_capability: Major and minor, None when unknown.
        multiprocessors: Streaming multiprocessors (compute units on AMD), -1 when unknown.
        total_memory_bytes: ``torch.cuda.get_device_properties().total_memory``.
        total_memory_basis: How the figure is known.
        total_memory_source: Source of the figure, in words.
        context_bytes: Memory that the process holds besides its segments: the context and the kernels it
            loads.
        loaded_kernels_bytes: The part of ``context_bytes`` that comes only as kernels are loaded.
        context_basis: How the two are known.
        nvml_total_memory_bytes: The total that nvidia-smi shows, larger than CUDA's; -1 when unknown.
        processing_clusters: Multiprocessors of each processing cluster (GPC); empty when unknown.
        vendor: ``NVIDIA`` or ``AMD``.
        attributes: CUDA's device attributes, by the names of ``data/cuda_attributes.toml``: clocks in kHz,
            sizes in bytes, the bus in bits. Those that follow from the fields above are not among them, nor
            is the PCI address. Empty for a GPU without CUDA.
        attribute_bases: How each attribute is known.
        attributes_source: Source of the board's attributes, in words.
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
    nvml_total_memory_bytes: int = -1
    processing_clusters: tuple[int, ...] = ()
    vendor: str = "NVIDIA"
    attributes: Mapping[str, int] = field(default_factory=dict, hash=False)
    attribute_bases: Mapping[str, Basis] = field(default_factory=dict, hash=False)
    attributes_source: str = ""

    @property
    def usable_bytes(self) -> int:
        """Memory left for segments once the context and the kernels are loaded."""
        return self.total_memory_bytes - self.context_bytes


@cache
def attribute_numbers() -> Mapping[str, int]:
    """Return the numbers of CUDA's device attributes (cudaDeviceAttr), by name."""
    return cast(Mapping[str, int], _data("cuda_attributes.toml"))


def parse_device(text: str, *, slug: str, where: str) -> Device:
    """Parse the GPU that a file describes, with the attributes of its architecture where the file gives none.

    Args:
        text: The file.
        slug: What ``--gpu`` takes for it.
        where: The file's name, for messages.

    Raises:
        ConfigError: The text is not TOML, or a key is missing, unknown or has an invalid value.
    """
    try:
        entries = _Entries(where, parse_toml(text))
    except ValueError as error:
        raise ConfigError(
            f"{where} is not valid TOML ({error})", "write it as docs/devices.md describes"
        ) from error
    full_name = entries.text("full_name")
    vendor = entries.one_of("vendor", ("NVIDIA", "AMD"), "NVIDIA")
    multiprocessors = entries.count("multiprocessors", at_least=1)
    capability = entries.compute_capability()
    context = _CONTEXT_BYTES + _CONTEXT_BYTES_PER_MULTIPROCESSOR * multiprocessors + _KERNELS_BYTES
    context_is_given = "context_bytes" in entries
    attributes = entries.attributes()
    if vendor == "NVIDIA":
        attributes = {**_architecture_attributes(capability), **attributes}
    device = Device(
        slug=slug,
        name=entries.text("name", full_name),
        full_name=full_name,
        aliases=entries.texts("aliases"),
        architecture=entries.text("architecture", ""),
        compute_capability=capability,
        multiprocessors=multiprocessors,
        total_memory_bytes=entries.count("total_memory_bytes", at_least=1),
        total_memory_basis=entries.one_of("total_memory_basis", get_args(Basis), "given"),
        total_memory_source=entries.text("total_memory_source", ""),
        context_bytes=entries.count("context_bytes", context),
        loaded_kernels_bytes=entries.count("loaded_kernels_bytes", _KERNELS_BYTES),
        context_basis=entries.one_of(
            "context_basis", get_args(Basis), "given" if context_is_given else "assumed"
        ),
        nvml_total_memory_bytes=entries.count("nvml_total_memory_bytes", -1),
        processing_clusters=entries.counts("processing_clusters", at_least=1),
        vendor=vendor,
        attributes={name: value for name, (value, _) in attributes.items()},
        attribute_bases={name: basis for name, (_, basis) in attributes.items()},
        attributes_source=entries.text("attributes_source", ""),
    )
    entries.end()
    _check(device, where)
    return device


def describe_device(device: Device) -> str:
    """Return the file that describes a GPU: ``parse_device`` makes the same GPU from it, except for its
    slug."""
    assert device.compute_capability is not None, "a GPU known by its size alone"
    lines = [f"{key} = {value}" for key, value in _written_fields(device)]
    by_basis: dict[Basis, list[str]] = {basis: [] for basis in get_args(Basis)}
    for name in sorted(attribute_numbers(), key=attribute_numbers().__getitem__):
        if name in device.attributes and name not in _SAID_ELSEWHERE:
            by_basis[device.attribute_bases[name]].append(f"{name} = {device.attributes[name]}")
    for basis, attributes in by_basis.items():
        if attributes:
            lines += ["", f"[attributes.{basis}]", *attributes]
    return "\n".join(lines) + "\n"


def _written_fields(device: Device) -> Iterator[tuple[str, str]]:
    yield "name", _quoted(device.name)
    yield "full_name", _quoted(device.full_name)
    if device.aliases:
        yield "aliases", f"[{', '.join(map(_quoted, device.aliases))}]"
    yield "vendor", _quoted(device.vendor)
    yield "architecture", _quoted(device.architecture)
    yield "compute_capability", str(list(device.compute_capability or ()))
    yield "multiprocessors", str(device.multiprocessors)
    yield "total_memory_bytes", str(device.total_memory_bytes)
    yield "total_memory_basis", _quoted(device.total_memory_basis)
    yield "total_memory_source", _quoted(device.total_memory_source)
    if device.nvml_total_memory_bytes >= 0:
        yield "nvml_total_memory_bytes", str(device.nvml_total_memory_bytes)
    if device.processing_clusters:
        yield "processing_clusters", str(list(device.processing_clusters))
    yield "context_bytes", str(device.context_bytes)
    yield "loaded_kernels_bytes", str(device.loaded_kernels_bytes)
    yield "context_basis", _quoted(device.context_basis)
    if device.attributes:
        yield "attributes_source", _quoted(device.attributes_source)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


_Attributes = dict[str, tuple[int, Basis]]


def architecture_attributes(compute_capability: tuple[int, int]) -> dict[str, int]:
    """Return the CUDA attributes of a compute capability; those common to all if it is unknown."""
    return {name: value for name, (value, _) in _architecture_attributes(compute_capability).items()}


def _architecture_attributes(capability: tuple[int, int]) -> _Attributes:
    tables = _data("architectures.toml")
    return {
        name: (value, cast(Basis, basis))
        for key in ("common", f"{capability[0]}.{capability[1]}")
        for basis, attributes in tables.get(key, {}).items()
        for name, value in attributes.items()
    }


@cache
def _data(name: str) -> dict[str, Any]:
    return parse_toml(read_data(name))


def _check(device: Device, where: str) -> None:
    """Check what no value can get wrong by itself, only two together.

    Raises:
        ConfigError: The figures contradict each other.
    """
    if device.context_bytes >= device.total_memory_bytes:
        raise ConfigError(
            f"{where}: context_bytes = {device.context_bytes} is not less than total_memory_bytes",
            "give both in bytes",
        )
    if device.loaded_kernels_bytes > device.context_bytes:
        raise ConfigError(
            f"{where}: loaded_kernels_bytes = {device.loaded_kernels_bytes} is more than context_bytes",
            "give both in bytes; the kernels are a part of the context",
        )
    if device.processing_clusters and sum(device.processing_clusters) != device.multiprocessors:
        raise ConfigError(
            f"{where}: processing_clusters have {sum(device.processing_clusters)} multiprocessors, not "
            f"{device.multiprocessors}",
            "give the multiprocessors of each cluster, or leave them out",
        )
    if not device.attributes:
        return
    if device.vendor != "NVIDIA":
        raise ConfigError(f"{where}: a GPU without CUDA cannot have [attributes]", "remove them")
    values = device.attributes
    if "MaxSharedMemoryPerMultiprocessor" in values:
        largest = values["MaxSharedMemoryPerMultiprocessor"] - values.get("ReservedSharedMemoryPerBlock", 0)
        if (optin := values.get("MaxSharedMemoryPerBlockOptin", 0)) > largest:
            raise ConfigError(
                f"{where}: MaxSharedMemoryPerBlockOptin = {optin} is more than "
                "MaxSharedMemoryPerMultiprocessor less ReservedSharedMemoryPerBlock"
            )
    threads = values.get("MaxThreadsPerMultiProcessor", 32)
    if threads <= 0 or threads % 32 != 0:
        raise ConfigError(
            f"{where}: MaxThreadsPerMultiProcessor = {threads} is not a positive multiple of 32"
        )


_Choice = TypeVar("_Choice", bound=str)


class _Entries:
    """The keys of a file, each taken once: keys that nobody took are unknown.

    Every method raises ``ConfigError`` with the file, the key and what to do.
    """

    def __init__(self, where: str, table: dict[str, Any]) -> None:
        self._where = where
        self._table = table
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def text(self, key: str, default: str | None = None) -> str:
        return cast(str, self._take(key, default, "a string of one line", _is_line))

    def texts(self, key: str) -> tuple[str, ...]:
        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(map(_is_line, value))

        return tuple(self._take(key, [], "a list of strings of one line", fits))

    def one_of(self, key: str, choices: tuple[_Choice, ...], default: _Choice) -> _Choice:
        return cast(_Choice, self._take(key, default, f"one of {', '.join(choices)}", choices.__contains__))

    def count(self, key: str, default: int | None = None, *, at_least: int = 0) -> int:
        wanted = f"a whole number of at least {at_least}"
        return cast(int, self._take(key, default, wanted, lambda value: _is_count(value, at_least)))

    def counts(self, key: str, *, at_least: int = 0) -> tuple[int, ...]:
        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(_is_count(part, at_least) for part in value)

        return tuple(self._take(key, [], f"a list of whole numbers of at least {at_least}", fits))

    def compute_capability(self) -> tuple[int, int]:
        def fits(value: Any) -> bool:
            return isinstance(value, list) and len(value) == 2 and all(_is_count(part) for part in value)

        major, minor = self._take("compute_capability", None, "major and minor, such as [8, 6]", fits)
        return major, minor

    def attributes(self) -> _Attributes:
        tables = self._take("attributes", {}, "tables by basis, such as [attributes.measured]", _is_table)
        found: _Attributes = {}
        for basis, attributes in tables.items():
            if basis not in get_args(Basis) or not _is_table(attributes):
                raise ConfigError(
                    f"{self._where}: attributes.{basis} is invalid",
                    f"write a table [attributes.BASIS], where BASIS is one of {', '.join(get_args(Basis))}",
                )
            for name, value in attributes.items():
                self._check_attribute(name, value, is_new=name not in found)
                found[name] = (value, basis)
        return found

    def end(self) -> None:
        for key in self._table:
            if key not in self._taken:
                near = nearest(key, self._taken)
                raise ConfigError(
                    f"{self._where}: unknown key {key}",
                    f"did you mean {near[0]}?" if near else f"use one of {', '.join(sorted(self._taken))}",
                )

    def _take(self, key: str, default: Any, wanted: str, fits: Any) -> Any:
        self._taken.add(key)
        if key not in self._table:
            if default is None:
                raise ConfigError(f"{self._where}: {key} is missing", f"set it to {wanted}")
            return default
        value = self._table[key]
        if not fits(value):
            raise ConfigError(f"{self._where}: {key} = {value!r} is invalid", f"use {wanted}")
        return value

    def _check_attribute(self, name: str, value: Any, *, is_new: bool) -> None:
        where = f"{self._where}: attribute {name}"
        if name in _SAID_ELSEWHERE:
            raise ConfigError(f"{where} is not allowed", _SAID_ELSEWHERE[name])
        if name not in attribute_numbers():
            near = nearest(name, attribute_numbers())
            raise ConfigError(
                f"{where} is unknown",
                f"use a name of cudaDeviceAttr, such as {near[0] if near else 'L2CacheSize'}",
            )
        if not is_new:
            raise ConfigError(f"{where} appears under two bases", "give it once")
        if not _is_count(value) or value > _LARGEST_ATTRIBUTE:
            raise ConfigError(f"{where} = {value!r} is invalid", "use a whole number from 0 to 2147483647")


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_count(value: Any, at_least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)
