"""Largest value of a dimension at which a job fits a GPU, by exact replay.

The allocator's caches make the answer jump: a larger batch can need less reserved memory than a smaller one,
and a device that is nearly full makes it flush and go on. Only the bytes in blocks are certain to grow with
the sizes, so they bound the search from above; below the bound every value is replayed on the device, from
the top down, until one fits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from types import MappingProxyType

import numpy as np

from xmem.devices.gpus import Device
from xmem.errors import ConfigError
from xmem.estimation.need import Need, memory_needed
from xmem.estimation.question import AS_RECORDED, Question
from xmem.records import dataclass
from xmem.scaling.dimensions import label
from xmem.scaling.model import ScalingModel

_TRIED_BELOW = 48

LARGEST_VALUE = 1 << 20
"""Largest value of a dimension to search."""


@dataclass(frozen=True)
class Largest:
    """The result of a search.

    Attributes:
        dimension: Dimension that was searched.
        value: Largest value that fits; 0 when none does, not even 1.
        at: Values of the other dimensions.
        need: Need of the job there, None when nothing fits.
        bound: No value above this can fit: its blocks alone are larger than the GPU.
        replayed: Number of values replayed on the GPU.
        smaller_misfits: Values below ``value`` that do not fit, ascending, of those tried: some dozens,
            evenly spaced, and those that the search visited.
    """

    dimension: str
    value: int
    at: Mapping[str, int]
    need: Need | None
    bound: int
    replayed: int
    smaller_misfits: tuple[int, ...]


@dataclass(frozen=True)
class CurvePoint:
    """Memory that a job needs at one value of a dimension, on a device without limit."""

    value: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int


class Prober:
    """The need of a model along one dimension, each value replayed once."""

    def __init__(
        self, model: ScalingModel, dimension: str, question: Question, at: Mapping[str, int]
    ) -> None:
        if dimension not in model.dimensions:
            raise ConfigError(
                f"{dimension} is not a dimension of the model", f"use one of {', '.join(model.dimensions)}"
            )
        self.model = model
        self.dimension = dimension
        self.question = question
        self.at = dict(at)
        self._known: dict[int, Need] = {}

    def __call__(self, value: int) -> Need:
        """Return the need of the job at this value.

        Raises:
            ConfigError: The other dimensions are not those of the model.
        """
        if value not in self._known:
            observed = self.model.at({**self.at, self.dimension: value})
            self._known[value] = memory_needed(observed, self.question)
        return self._known[value]

    @property
    def known(self) -> Mapping[int, Need]:
        """Every value requested so far."""
        return self._known


def find_largest(
    model: ScalingModel,
    dimension: str,
    device: Device,
    question: Question = AS_RECORDED,
    at: Mapping[str, int] = MappingProxyType({}),
) -> Largest:
    """Find the largest value of a dimension that fits on a GPU.

    Args:
        model: The fitted model.
        dimension: A dimension of the model.
        device: The GPU.
        question: Settings of the job.
        at: Values of the model's other dimensions.

    Raises:
        ConfigError: A dimension, a setting or a version is invalid, or the dimension does not change
            how much memory the job needs.
    """
    probe = Prober(model, dimension, question.on(device), at)
    bound = _last(lambda value: probe(value).peak_allocated_bytes <= device.usable_bytes)
    if bound is None:
        given = f", given {label(probe.at)}" if probe.at else ""
        raise ConfigError(
            f"{dimension} up to {LARGEST_VALUE} fits on the {device.name}{given}",
            "search a dimension that changes the memory of the job",
        )
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        value = next(_fitting_from_above(probe, bound, threads), 0)
        list(threads.map(probe, _spread(value, _TRIED_BELOW)))
    misfits = (seen for seen, need in probe.known.items() if seen < value and not need.fits)
    return Largest(
        dimension=dimension,
        value=value,
        at=probe.at,
        need=probe(value) if value else None,
        bound=bound,
        replayed=len(probe.known),
        smaller_misfits=tuple(sorted(misfits)),
    )


def curve_of(
    model: ScalingModel,
    dimension: str,
    up_to: int,
    points: int,
    question: Question = AS_RECORDED,
    at: Mapping[str, int] = MappingProxyType({}),
) -> list[CurvePoint]:
    """Return the peak at values of a dimension, evenly spaced from 1 to ``up_to``, both included.

    Raises:
        ConfigError: A dimension, a setting or a version is invalid.
    """
    probe = Prober(model, dimension, question.on(None), at)
    values = _spread(up_to, points)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as threads:
        needs = list(threads.map(probe, values))
    return [
        CurvePoint(value, need.peak_reserved_bytes, need.peak_allocated_bytes)
        for value, need in zip(values, needs, strict=True)
    ]


def _spread(up_to: int, points: int) -> list[int]:
    """Return the given number of whole numbers from 1 to `up_to`, evenly spaced, both included."""
    return sorted(set(np.linspace(1, up_to, min(points, up_to)).round().astype(int).tolist()))


def _last(holds: Callable[[int], bool]) -> int | None:
    """Return the last value of 0, 1, 2, ... for which a condition holds that fails for good once it fails;
    None when it holds up to the end of the search.
    """
    too_large = next(1 << power for power in count() if 1 << power > LARGEST_VALUE or not holds(1 << power))
    if too_large > LARGEST_VALUE:
        return None
    low, high = too_large // 2, too_large  # holds, fails; 0 always holds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _fitting_from_above(probe: Prober, bound: int, threads: ThreadPoolExecutor) -> Iterator[int]:
    """Yield values that fit, from the bound down; a few are replayed at once."""
    descending = iter(range(bound, 0, -1))
    while chunk := list(islice(descending, 2 * (os.cpu_count() or 1))):
        for value, need in zip(chunk, threads.map(probe, chunk), strict=True):
            if need.fits:
                yield value
