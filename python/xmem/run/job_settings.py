"""PyTorch release and allocator settings of a job: as given, or else as its trace was recorded with."""

from __future__ import annotations

from dataclasses import dataclass

from xmem.simulation import alloc_conf as allocator_settings
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.trace.trace import Trace


@dataclass(frozen=True)
class JobSettings:
    """The settings that a job runs with.

    Attributes:
        torch_version: Its PyTorch, such as ``2.13.0``.
        alloc_conf: Its ``PYTORCH_CUDA_ALLOC_CONF``, empty for the defaults.
        options: Settings of the allocator that follow from these.
    """

    torch_version: str
    alloc_conf: str
    options: AllocatorOptions

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor) of its PyTorch."""
        return allocator_settings.release_of(self.torch_version)


def job_settings(
    trace: Trace, alloc_conf: str | None = None, torch_version: str | None = None
) -> JobSettings:
    """Return the settings of the job in a trace; None means as recorded, or else the default.

    Raises:
        ConfigError: The settings or the version are invalid.
    """
    notes = trace.notes
    if torch_version is None:
        torch_version = notes.torch_version or allocator_settings.DEFAULT_TORCH_VERSION
    if alloc_conf is None:
        alloc_conf = "" if notes.allocator is None else notes.allocator.alloc_conf
    return JobSettings(torch_version, alloc_conf, allocator_settings.parse(alloc_conf, torch_version))
