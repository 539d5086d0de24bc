"""PyTorch release and allocator settings of a job: as given, or else as its trace was recorded with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from xmem.simulation import alloc_conf as allocator_settings
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.trace.trace import Trace


@dataclass(frozen=True)
class JobSettings:
    """The settings that a job runs with.

    Attributes:
        torch_version: Its PyTorch, such as ``2.13.0``.
        alloc_conf: Its ``PYTORCH_CUDA_ALLOC_CONF``, empty for the defaults.
    """

    torch_version: str
    alloc_conf: str

    @cached_property
    def options(self) -> AllocatorOptions:
        """Settings of the allocator that follow from these.

        Raises:
            ConfigError: The release does not accept them.
        """
        return allocator_settings.parse(self.alloc_conf, self.torch_version)

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor) of its PyTorch.

        Raises:
            ConfigError: The version is invalid.
        """
        return allocator_settings.release_of(self.torch_version)


def job_settings(
    trace: Trace, alloc_conf: str | None = None, torch_version: str | None = None
) -> JobSettings:
    """Return the settings of the job in a trace; None means as recorded, or else the default."""
    notes = trace.notes
    if torch_version is None:
        torch_version = notes.torch_version or allocator_settings.DEFAULT_TORCH_VERSION
    if alloc_conf is None:
        alloc_conf = "" if notes.allocator is None else notes.allocator.alloc_conf
    return JobSettings(torch_version, alloc_conf)
