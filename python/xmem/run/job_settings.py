"""PyTorch release and allocator settings of a job: as given, or else as its trace was recorded with."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from xmem.records import dataclass
from xmem.simulation import alloc_conf as allocator_settings
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.trace.blocks import CPU
from xmem.trace.trace import Trace


@dataclass(frozen=True)
class JobSettings:
    """The settings that a job runs with.

    Attributes:
        torch_version: Its PyTorch, such as ``2.13.0``.
        alloc_conf: Its ``PYTORCH_CUDA_ALLOC_CONF``, empty for the defaults.
        sizes_with_slack: Whether the trace has sizes of blocks, not of requests.
        names_torch: Whether the trace or the user names that PyTorch; else it is the default.
    """

    torch_version: str
    alloc_conf: str
    sizes_with_slack: bool = False
    names_torch: bool = True

    @property
    def settings_of(self) -> str:
        """The release whose settings the job can be advised to use: those of the oldest are in all."""
        return self.torch_version if self.names_torch else allocator_settings.RULE_RELEASES[0]

    def why_none_to_try(self, trace: Trace) -> str | None:
        """Sentence for a job that cannot be advised to use any setting: its PyTorch is older than all of
        them, and nothing names the one that will run it. None for others.
        """
        if self.names_torch or not trace.is_of_2021:
            return None
        return (
            "PyTorch 1.10 or earlier recorded this trace, and its allocator does not have the settings that "
            "would be tried; if a newer one runs the job, name it with --torch VERSION"
        )

    @cached_property
    def options(self) -> AllocatorOptions:
        """Settings of the allocator that follow from these.

        Raises:
            ConfigError: The release does not accept them.
        """
        options = allocator_settings.parse(self.alloc_conf, self.torch_version)
        return replace(options, sizes_with_slack=self.sizes_with_slack)

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
    named = torch_version or notes.torch_version
    if alloc_conf is None:
        alloc_conf = "" if notes.allocator is None else notes.allocator.alloc_conf
    return JobSettings(
        named or allocator_settings.DEFAULT_TORCH_VERSION,
        alloc_conf,
        sizes_with_slack=_has_sizes_of_blocks(trace),
        names_torch=bool(named),
    )


def _has_sizes_of_blocks(trace: Trace) -> bool:
    """Return whether memory events have sizes of blocks, with rounding and slack: those of a GPU do (torch
    2.13, ``DeviceCachingAllocator::malloc`` reports ``block->size``); a phantom GPU's notes have requests."""
    return trace.notes.phantom is None and bool((trace.memory.device_type != CPU).any())
