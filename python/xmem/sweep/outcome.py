"""Outcome of one configuration."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from xmem.devices.gpus import Device
from xmem.estimation.need import Need
from xmem.records import dataclass


@dataclass(frozen=True)
class ConfigurationOutcome:
    """The answer for one configuration, or the reason why there is none.

    Attributes:
        peak_reserved_bytes: Most memory that the allocator held: in the run on the GPU where it fits, in a
            run on one without limit where it does not or none is named.
        peak_allocated_bytes: Most memory in blocks in use, likewise.
        device_peak_bytes: CUDA context plus peak reserved.
        fits: Whether the job ends on the GPU; None without a GPU.
        margin_bytes: Memory of the GPU minus the device peak; None without a GPU.
        peak_reserved_least_bytes: Least possible peak, given what the fit of the model leaves open; None for
            a run as it was recorded.
        peak_reserved_most_bytes: Largest possible peak, likewise.
        retries: Number of times that all caches were flushed before memory was found, in the same run.
        seconds: Time spent on this row; work that rows share counts for the first of them.
        error: Reason why there is no answer, None where there is one.
    """

    peak_reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    device_peak_bytes: int | None = None
    fits: bool | None = None
    margin_bytes: int | None = None
    peak_reserved_least_bytes: int | None = None
    peak_reserved_most_bytes: int | None = None
    retries: int | None = None
    seconds: float = 0.0
    error: str | None = None

    def columns(self) -> dict[str, Any]:
        """Return the name and value of each column, in order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def after(self, seconds: float) -> ConfigurationOutcome:
        """Return the same outcome with its time."""
        return replace(self, seconds=round(seconds, 6))


def outcome_of(need: Need, device: Device | None) -> ConfigurationOutcome:
    """Return the outcome for the need of a job."""
    scaling = need.scaling
    return ConfigurationOutcome(
        peak_reserved_bytes=need.peak_reserved_bytes,
        peak_allocated_bytes=need.peak_allocated_bytes,
        device_peak_bytes=need.device_peak_bytes,
        fits=need.fits,
        margin_bytes=None if device is None else device.total_memory_bytes - need.device_peak_bytes,
        peak_reserved_least_bytes=None if scaling is None else scaling.peak_reserved_least_bytes,
        peak_reserved_most_bytes=None if scaling is None else scaling.peak_reserved_most_bytes,
        retries=need.retries,
    )
