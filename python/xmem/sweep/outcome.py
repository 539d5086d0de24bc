"""What became of one configuration."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from xmem.devices import Device
from xmem.need import Need


@dataclass(frozen=True)
class Outcome:
    """The answer for one configuration, or why there is none.

    Attributes:
        peak_reserved_bytes: The most that the allocator held: of the run on the GPU where it fits, of the run
            on one without limit where it does not or none is named.
        peak_allocated_bytes: The most that was in blocks in use, likewise.
        device_peak_bytes: CUDA context plus peak reserved.
        fits: Whether the job ends on the GPU; None without a GPU.
        margin_bytes: Memory of the GPU less the device peak; None without a GPU.
        peak_reserved_least_bytes: The least that the peak could be, by what the fit of the model leaves open;
            None for a run as it was recorded.
        peak_reserved_most_bytes: The most, likewise.
        retries: Times that all caches were flushed before memory was found, in the same run.
        seconds: Time spent on this row; work that rows share counts for the first of them.
        error: Why there is no answer, None where there is one.
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
        """Name and value of each, in order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def after(self, seconds: float) -> Outcome:
        """The same, with its time."""
        return replace(self, seconds=round(seconds, 6))


def outcome_of(need: Need, device: Device | None) -> Outcome:
    """What a job needs, as a row says it."""
    scaling = need.scaling
    return Outcome(
        peak_reserved_bytes=need.peak_reserved_bytes,
        peak_allocated_bytes=need.peak_allocated_bytes,
        device_peak_bytes=need.device_peak_bytes,
        fits=need.fits,
        margin_bytes=None if device is None else device.total_memory_bytes - need.device_peak_bytes,
        peak_reserved_least_bytes=None if scaling is None else scaling.peak_reserved_least_bytes,
        peak_reserved_most_bytes=None if scaling is None else scaling.peak_reserved_most_bytes,
        retries=need.retries,
    )
