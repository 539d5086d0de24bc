"""The curve as an SVG without scripts, for readers that run none and for print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xmem.breakdown.curve import Span, shape_of
from xmem.text.units import format_bytes
from xmem.trace.attribution import Category

STACKED = (
    Category.PARAMETER,
    Category.BUFFER,
    Category.OPTIMIZER_STATE,
    Category.GRADIENT,
    Category.INPUT,
    Category.ACTIVATION,
    Category.WORKSPACE,
    Category.TEMPORARY,
    Category.UNKNOWN,
)
"""Categories from the bottom of a stack to its top, the longest lived first."""

_MOST_POINTS = 400


class Frame(NamedTuple):
    """The drawing in its own units, and the edges of the plot in it; y grows downwards."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


FRAME = Frame(width=960, height=300, left=70, right=950, top=16, bottom=276)


class SizeTick(NamedTuple):
    """A line across the plot and its text."""

    y: float
    text: str


class TimeTick(NamedTuple):
    """A time below the plot."""

    x: float
    text: str


class Shade(NamedTuple):
    """An iteration as a strip."""

    x: float
    width: float
    label: str


class Area(NamedTuple):
    """A category as an area."""

    category: str
    path: str


class StaticPlot(NamedTuple):
    """Shapes in the units of ``FRAME``."""

    areas: list[Area]
    reserved: str
    sizes: list[SizeTick]
    times: list[TimeTick]
    shades: list[Shade]
    capacity_y: float | None
    peak: tuple[float, float]


def static_plot(
    x: NDArray[np.float64],
    by_category: NDArray[np.int64],
    reserved_bytes: NDArray[np.int64],
    spans: Sequence[tuple[Span, float, float]],
    *,
    peak: int,
    capacity_bytes: int | None,
) -> StaticPlot:
    """Draw the curve.

    Args:
        x: Seconds of each instant, ascending.
        by_category: int64 bytes, a row per `Category`, a column per instant.
        reserved_bytes: Reserved bytes at each instant.
        spans: Iterations, and the x coordinates of their ends.
        peak: Instant of the peak of allocated memory.
        capacity_bytes: Memory of the device that the allocator can use.
    """
    top = float(max(int(reserved_bytes.max()), 1))
    if capacity_bytes is not None and capacity_bytes < 2.5 * top:
        top = max(top, float(capacity_bytes))
    top *= 1.04
    low, high = float(x[0]), float(x[-1])
    wide = (FRAME.right - FRAME.left) / ((high - low) or 1.0)

    unit, per_unit = ("s", 1.0) if high - low >= 2 else ("ms", 1e3) if high - low >= 2e-3 else ("µs", 1e6)

    def across(value: float) -> float:
        return round(FRAME.left + (value - low) * wide, 1)

    def up(bytes_: float) -> float:
        return round(FRAME.bottom - bytes_ / top * (FRAME.bottom - FRAME.top), 1)

    kept = _thinned(by_category.sum(axis=0), peak)
    across_all = np.round(FRAME.left + (x - low) * wide, 1)
    stacked = np.cumsum(by_category[[int(category) for category in STACKED]], axis=0)
    areas = [
        Area(category.label, _steps(across_all[kept], heights[kept], top, closed=True))
        for category, heights in reversed(list(zip(STACKED, stacked, strict=True)))
        if by_category[int(category)].any()
    ]
    return StaticPlot(
        areas=areas,
        reserved=_steps(across_all, reserved_bytes, top, closed=False),
        sizes=[SizeTick(up(value), format_bytes(value)) for value in _round_values(top)],
        times=[
            TimeTick(across(value), f"{(value - low) * per_unit:.3g} {unit}")
            for value in np.linspace(low, high, 6)
        ],
        shades=[
            Shade(across(begin), max(across(end) - across(begin), 0.5), span.label)
            for span, begin, end in spans
        ],
        capacity_y=None if capacity_bytes is None or capacity_bytes > top else up(capacity_bytes),
        peak=(across(float(x[peak])), up(float(by_category[:, peak].sum()))),
    )


def _thinned(total: NDArray[np.int64], peak: int) -> NDArray[np.intp]:
    if len(total) <= _MOST_POINTS:
        return np.arange(len(total))
    return np.unique(np.append(shape_of(total, _MOST_POINTS), peak))


def _steps(across: NDArray[np.float64], heights: NDArray[np.int64], top: float, *, closed: bool) -> str:
    """Return a path of steps: each value holds until the next instant."""
    bottom = FRAME.bottom
    rise = np.round(bottom - heights / top * (FRAME.bottom - FRAME.top), 1)
    turns = np.concatenate([[True], rise[1:] != rise[:-1]])
    steps = "".join(
        f"H{x:g}V{y:g}" for x, y in zip(across[turns].tolist(), rise[turns].tolist(), strict=True)
    )
    start, end = across[0], across[-1]
    if closed:
        return f"M{start:g} {bottom:g}{steps}H{end:g}V{bottom:g}Z"
    return f"M{start:g} {rise[0]:g}{steps}H{end:g}"


def _round_values(top: float) -> list[int]:
    """Return about four sizes below the top, multiples of a power of two."""
    step = 2.0 ** np.floor(np.log2(top / 3))
    return [int(step * number) for number in range(int(top / step) + 1)]
