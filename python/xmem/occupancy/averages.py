"""One number for a run: the four things that are called its occupancy, each with how sure it is.

| name | mean over | comparable with |
|---|---|---|
| ``launch_mean`` | launches, all multiprocessors | the profiler's estimates, averaged |
| ``launch_mean_active`` | launches, multiprocessors with a block | Nsight Compute's "achieved occupancy" |
| ``time_mean`` | launches by their duration, all multiprocessors | TensorBoard's figure |
| ``wall_mean`` | the same, and time without a kernel counts as 0 | DCGM and NVML GPM |
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem.files.documents import parse_toml
from xmem.files.package_data import read_data
from xmem.occupancy.calculator import Filling
from xmem.records import dataclass


@dataclass(frozen=True, slots=True)
class Average:
    """A mean occupancy, 0 to 1, and the interval that the errors of the models allow."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Averages:
    """The four means of a run. ``None`` = it takes durations, or gaps between kernels, that are not known."""

    launch_mean: Average
    launch_mean_active: Average
    time_mean: Average | None
    wall_mean: Average | None


@dataclass(frozen=True)
class Achieved:
    """What the hardware's counters would show per launch, 0 to 1: float64 columns.

    Attributes:
        expected: Occupancy over the time that a multiprocessor has a block.
        low: One in twenty measured kernels is below.
        high: One in twenty measured kernels is above.
    """

    expected: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def achieved(filled: Filling) -> Achieved:
    """Return what counters would show: blocks do not begin and end together, so it is not quite ``active``.

    The corrections, by waves of the grid, are those of ``data/achieved_occupancy.toml``, measured on an A100.
    """
    bands = _bands()
    edges = np.array([band["waves_below"] for band in bands[:-1]])
    band_of = np.searchsorted(edges, filled.waves, side="right")

    def corrected(key: str) -> NDArray[np.float64]:
        factors = np.array([band[key] for band in bands])
        share: NDArray[np.float64] = np.minimum(filled.active * factors[band_of], 1.0)
        return share

    return Achieved(corrected("median"), corrected("low"), corrected("high"))


def averages(
    filled: Filling,
    durations_ns: NDArray[np.int64] | None = None,
    wall_ns: int = -1,
    *,
    error: float = 0.0,
    duration_error: float = 0.0,
) -> Averages:
    """Return the four means of a run.

    Args:
        filled: A row per launch.
        durations_ns: Of the launches, recorded or of ``xmem.occupancy.durations``; None = unknown.
        wall_ns: From the first launch to the end of the last one; -1 = unknown.
        error: Relative error of the launches, as far as a model made them; 0 = they are exact.
        duration_error: Relative error that the durations add to a mean weighted by them.
    """
    counters = achieved(filled)
    active = Average(
        _mean(counters.expected),
        max(_mean(counters.low) * (1 - error), 0.0),
        min(_mean(counters.high) * (1 + error), 1.0),
    )
    time_mean = wall_mean = None
    if durations_ns is not None and durations_ns.sum() > 0:
        both = float(np.hypot(error, duration_error))
        by_time = float(np.average(filled.elapsed, weights=durations_ns))
        time_mean = _around(by_time, both)
        if wall_ns > 0:
            wall_mean = _around(by_time * min(int(durations_ns.sum()) / wall_ns, 1.0), both)
    return Averages(_around(_mean(filled.steady), error), active, time_mean, wall_mean)


def _mean(column: NDArray[np.float64]) -> float:
    return float(column.mean()) if len(column) else 0.0


def _around(value: float, error: float) -> Average:
    return Average(value, max(value * (1 - error), 0.0), min(value * (1 + error), 1.0))


@cache
def _bands() -> list[dict[str, Any]]:
    text = read_data("achieved_occupancy.toml")
    bands: list[dict[str, Any]] = parse_toml(text)["band"]
    return bands
