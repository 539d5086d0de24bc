"""What the driver says of the memory in use: NVML through its C interface, which all drivers bring along."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Protocol

PAGE_BYTES = 4096
_TEXT_BYTES = 96


class DeviceMemory(Protocol):
    """How much of a device all processes use."""

    source: str

    def used_bytes(self) -> int:
        """At this moment."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class NvmlError(Exception):
    """NVML is not there, or refuses."""


class Nvml:
    """One GPU, by the UUID that CUDA knows it by."""

    source = "nvml"

    def __init__(self, uuid: str) -> None:
        """Open the library.

        Raises:
            NvmlError: There is no driver, or no such GPU.
        """
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            raise NvmlError(f"no NVML: {error}") from None
        self._handle = ctypes.c_void_p()
        self._memory = _Memory()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))

    def used_bytes(self) -> int:
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(self._memory))
        return self._memory.used

    def total_bytes(self) -> int:
        """What nvidia-smi shows, more than what CUDA offers."""
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(self._memory))
        return self._memory.total

    def driver_version(self) -> str:
        """Such as ``580.65.06``."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(_TEXT_BYTES))
        return text.value.decode()

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise NvmlError(f"{name} returned {status}")


class HostMemory:
    """What stands in for NVML in a dry run: the memory of one process on the host."""

    source = "host"

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")

    def used_bytes(self) -> int:
        try:
            return int(self._file.read_text().split()[1]) * PAGE_BYTES
        except (OSError, IndexError):
            return 0
