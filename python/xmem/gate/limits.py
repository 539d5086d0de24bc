"""Limits of a job: the figure that is judged, its budget, and how far it may grow."""

from __future__ import annotations

from enum import StrEnum

from xmem.errors import ConfigError
from xmem.estimation.estimate import Estimate, Interval
from xmem.records import dataclass
from xmem.text.units import format_bytes, parse_bytes


class Metric(StrEnum):
    """The figure of an estimate that is judged."""

    DEVICE_PEAK = "device_peak"
    RESERVED = "reserved"
    ALLOCATED = "allocated"

    @property
    def words(self) -> str:
        """Name for people, to follow ``the``."""
        return {
            Metric.DEVICE_PEAK: "device peak",
            Metric.RESERVED: "peak of reserved memory",
            Metric.ALLOCATED: "peak of allocated memory",
        }[self]

    def of(self, estimate: Estimate, *, upper: bool = False) -> int:
        """Return the figure in bytes, for the process that holds most where a job has several.

        Args:
            estimate: Estimate of the job.
            upper: Return the upper bound of the estimate's interval, not the estimate itself.

        Raises:
            ConfigError: There is no upper bound of this figure.
        """
        if upper:
            high_bytes = _upper_bound(estimate, self)
            return high_bytes - (
                0 if self is Metric.DEVICE_PEAK else estimate.context_bytes + estimate.outside_bytes
            )
        if self is Metric.ALLOCATED:
            peaks = [estimate.peak_allocated_bytes, *_larger_ranks(estimate, "peak_allocated_bytes")]
            return max(peaks)
        reserved = max([estimate.peak_reserved_bytes, *_larger_ranks(estimate, "peak_reserved_bytes")])
        if self is Metric.RESERVED:
            return reserved
        return max(estimate.device_peak_bytes, reserved + estimate.context_bytes)


def _larger_ranks(estimate: Estimate, peak: str) -> list[int]:
    """Return the peaks of the job's other processes and GPUs that held more than the captured one."""
    if estimate.measured is None:
        return []
    own: int = getattr(estimate.measured, peak)
    peaks: list[int] = [getattr(rank, peak) for rank in estimate.measured.ranks]
    return [held for held in peaks if held > own]


def interval_of(estimate: Estimate) -> Interval:
    """Return the interval of an estimate that a confidence was given for.

    Raises:
        ConfigError: It has none.
    """
    if estimate.interval is not None:
        return estimate.interval
    if estimate.trace.source == "foreign":
        raise ConfigError(
            "a confidence needs an interval, and a trace of this kind has none",
            "leave --confidence out; the estimate's assumptions say why (docs/foreign_traces.md)",
        )
    raise ConfigError(
        "a confidence needs an interval, and the estimate has none",
        "write the estimate again with this version",
    )


def _upper_bound(estimate: Estimate, metric: Metric) -> int:
    if metric is Metric.ALLOCATED:
        raise ConfigError(
            "a confidence cannot be combined with the metric allocated",
            "use device_peak or reserved, which have bounds",
        )
    return interval_of(estimate).high_bytes


@dataclass(frozen=True)
class AllowedGrowth:
    """Allowed growth of a figure beyond its baseline.

    Attributes:
        bytes: Growth in bytes, whatever the baseline.
        share: Growth as a share of the baseline, instead.
    """

    bytes: int = 0
    share: float = 0.0

    def allowed_bytes(self, baseline_bytes: int) -> int:
        """Return the allowed growth of a baseline of this size."""
        return self.bytes + int(self.share * baseline_bytes)

    def __str__(self) -> str:
        return f"{self.share * 100:g}%" if self.share else format_bytes(self.bytes)


def parse_growth(text: str) -> AllowedGrowth:
    """Read ``5%`` or ``200MiB``; ``0`` allows no growth at all.

    Raises:
        ConfigError: The text is neither a share nor a size.
    """
    number, percent, rest = text.strip().partition("%")
    try:
        if percent and not rest and 0 <= float(number) < float("inf"):
            return AllowedGrowth(share=float(number) / 100)
        if text.strip() == "0":
            return AllowedGrowth()
        return AllowedGrowth(bytes=parse_bytes(text))
    except (ValueError, ConfigError):
        raise ConfigError(f"{text!r} is not a valid growth", "write it like 5%, 200MiB or 0") from None


@dataclass(frozen=True)
class Limits:
    """Limits of a job; a GPU is part of the estimate.

    Attributes:
        budget_bytes: Largest allowed figure, None when only the GPU and the baseline count.
        metric: The figure to judge.
        upper: Whether the upper bound of the estimate's interval is compared with the budget and the GPU.
        max_growth: Allowed growth beyond the baseline.
    """

    budget_bytes: int | None = None
    metric: Metric = Metric.DEVICE_PEAK
    upper: bool = False
    max_growth: AllowedGrowth = AllowedGrowth()
