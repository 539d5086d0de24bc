"""Release and allocator settings of a job: as given, else as its trace was recorded with."""

from __future__ import annotations

from typing import Any

from xmem import alloc_conf as allocator_settings
from xmem.alloc_conf import AllocatorOptions
from xmem.trace import Trace


def torch_version_of(trace: Trace, given: str | None) -> str:
    """The release that the job will run, such as ``2.13.0``: as given, else as recorded, else the default."""
    if given is not None:
        return given
    recorded = (trace.metadata or {}).get("versions", {}).get("torch")
    return str(recorded).partition("+")[0] if recorded else allocator_settings.DEFAULT_TORCH_VERSION


def alloc_conf_of(trace: Trace, given: str | None) -> str:
    """``PYTORCH_CUDA_ALLOC_CONF`` of the job: as given, else that of the recorded run on a GPU."""
    return str(allocator_notes(trace).get("alloc_conf", "")) if given is None else given


def allocator_options(trace: Trace, alloc_conf: str | None, torch_version: str | None) -> AllocatorOptions:
    """What these settings make of the allocator.

    Raises:
        ConfigError: The settings or the version are invalid.
    """
    return allocator_settings.parse(alloc_conf_of(trace, alloc_conf), torch_version_of(trace, torch_version))


def allocator_notes(trace: Trace) -> dict[str, Any]:
    """What PyTorch's own allocator said of a run on the phantom GPU or a real one, empty for other traces."""
    found: dict[str, Any] = phantom_notes(trace) or (trace.metadata or {}).get("measured", {})
    return found


def busiest_device(trace: Trace) -> int | None:
    """The device of the traced process that it reserved most of, as PyTorch's own allocator counted; None
    where that is not known."""
    ranks = allocator_notes(trace).get("ranks") or [{"devices": []}]
    busiest = max(ranks[0]["devices"], key=lambda row: row["peak_reserved_bytes"], default=None)
    return None if busiest is None else int(busiest["device"])


def phantom_notes(trace: Trace) -> dict[str, Any]:
    """What the capture noted of a run on the phantom GPU, empty for other traces."""
    found: dict[str, Any] = (trace.metadata or {}).get("phantom", {})
    return found
