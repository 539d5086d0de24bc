"""Sizes of the inputs of convolutions as functions of a script's dimensions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xmem.orchestration.convolution_calls import BACKWARD, FORWARD, InputDims
from xmem.orchestration.policy import Recorded
from xmem.scaling.dimensions import Point
from xmem.scaling.polynomials import Polynomials, fit_polynomials


@dataclass(frozen=True)
class Shapes:
    """The inputs of the base run's convolutions.

    Attributes:
        dims: As recorded, by ``EventTable.inputs`` of the base.
        polynomials: A row for each number in them, in order; None where the runs do not convolve alike.
    """

    dims: dict[int, list[list[int]]]
    polynomials: Polynomials | None

    def at(self, point: Point) -> InputDims | None:
        """The inputs at a point; numbers that no polynomial gives stay as recorded. None: all do."""
        if self.polynomials is None or not self.dims:
            return None
        values, holds = self.polynomials.at(point)
        sizes = iter(np.where(holds, values, _flat(self.dims.values())).tolist())
        return {
            name: [[next(sizes) for _ in dims] for dims in tensors] for name, tensors in self.dims.items()
        }


def fit_shapes(
    dimensions: Sequence[str], points: Sequence[Point], runs: Sequence[Recorded], base: int
) -> Shapes:
    """Fit the inputs of the base run's convolutions; the k-th convolution of every run is the same one."""
    names = [_inputs_in_order(run) for run in runs]
    dims = {name: tensors for name in dict.fromkeys(names[base]) if (tensors := _dims(runs[base], name))}
    if len({len(each) for each in names}) > 1:
        return Shapes(dims, None)
    first = {name: place for place, name in reversed(list(enumerate(names[base])))}
    columns = []
    for run, each in zip(runs, names, strict=True):
        found = [_dims(run, each[first[name]]) for name in dims]
        if [list(map(len, tensors)) for tensors in found] != [list(map(len, t)) for t in dims.values()]:
            return Shapes(dims, None)
        columns.append(_flat(found))
    sizes = np.array(columns, np.int64).T.reshape(-1, len(runs))
    return Shapes(dims, fit_polynomials(dimensions, points, sizes))


def _inputs_in_order(run: Recorded) -> list[int]:
    """``EventTable.inputs`` of every convolution, as the run came to them."""
    rows = np.flatnonzero(run.operators.rows_named({FORWARD, BACKWARD}))
    events = run.trace.events
    inputs: list[int] = events.inputs[rows[np.argsort(events.begin_ns[rows], kind="stable")]].tolist()
    return inputs


def _dims(run: Recorded, name: int) -> list[list[int]]:
    """Sizes of tensors that a convolution was given; none where they were not recorded."""
    recorded: Any = json.loads(run.trace.names[name])[0] if name >= 0 else None
    if not isinstance(recorded, list):
        return []
    return [tensor if all(type(size) is int for size in tensor) else [] for tensor in recorded]


def _flat(shapes: Any) -> list[int]:
    return [size for tensors in shapes for tensor in tensors for size in tensor]
