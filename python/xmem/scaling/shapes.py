"""Inputs of operators as functions of a script's dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem.records import dataclass
from xmem.run.inputs import Inputs, InputsByRow
from xmem.run.recorded import Recorded
from xmem.scaling.dimensions import Point
from xmem.scaling.polynomials import Polynomials, fit_polynomials
from xmem.text.units import MOST_BYTES


@dataclass(frozen=True)
class Shapes:
    """Shapes and strides of the inputs of the base run's operators.

    Attributes:
        recorded: Inputs of each row of the EventTable for which the trace has them, alike in every run.
        first: Row of ``polynomials`` of the first number of each.
        numbers: int64, numbers as recorded, operator by operator.
        polynomials: One row for each of these numbers.
    """

    recorded: dict[int, Inputs]
    first: dict[int, int]
    numbers: NDArray[np.int64]
    polynomials: Polynomials

    def at(self, point: Point) -> InputsByRow | None:
        """Return the inputs at a point; numbers without a polynomial stay as recorded. None: all do."""
        if not self.recorded:
            return None
        values, holds = self.polynomials.at(point)
        return _ScaledInputs(self, np.where(holds, values, self.numbers))


class _ScaledInputs:
    """Inputs at a point of a fitted model."""

    def __init__(self, shapes: Shapes, numbers: NDArray[np.int64]) -> None:
        self._shapes = shapes
        self._numbers = numbers

    def of(self, row: int) -> Inputs | None:
        recorded = self._shapes.recorded.get(row)
        if recorded is None:
            return None
        first = self._shapes.first[row]
        numbers = iter(self._numbers[first : first + _count(recorded)].tolist())
        shapes, strides = (_with_numbers(each, numbers) for each in recorded[:2])
        return Inputs(shapes, strides, recorded.values)


def fit_shapes(
    dimensions: Sequence[str], points: Sequence[Point], runs: Sequence[Recorded], base: int
) -> Shapes:
    """Fit the inputs of the base run's operators.

    The k-th operator of a name is the same one in every run. Operators whose number or kinds of inputs differ
    between runs are left out: they keep their recorded inputs.
    """
    rows_by_name = [_rows_by_name(run) for run in runs]
    recorded: dict[int, Inputs] = {}
    first: dict[int, int] = {}
    columns: list[list[int]] = [[] for _ in runs]
    for name, rows_of_base in rows_by_name[base].items():
        rows_of_runs = [rows.get(name, []) for rows in rows_by_name]
        if any(len(rows) != len(rows_of_base) for rows in rows_of_runs):
            continue
        for rows in zip(*rows_of_runs, strict=True):
            given = [run.operators.inputs(row) for run, row in zip(runs, rows, strict=True)]
            like = given[base]
            if like is None or any(each is None or _kind(each) != _kind(like) for each in given):
                continue
            recorded[rows[base]] = like
            first[rows[base]] = len(columns[base])
            for column, each in zip(columns, given, strict=True):
                if each is not None:
                    column.extend(_numbers(each))
    numbers = np.array(columns, np.int64).T.reshape(-1, len(runs))
    return Shapes(recorded, first, numbers[:, base], fit_polynomials(dimensions, points, numbers))


def _rows_by_name(run: Recorded) -> dict[str, list[int]]:
    """Return the rows of operators whose inputs were recorded, by name, in order of execution."""
    events, names = run.trace.events, run.trace.names
    rows = np.flatnonzero(events.inputs >= 0)
    found: dict[str, list[int]] = {}
    for row in rows[np.argsort(events.begin_ns[rows], kind="stable")].tolist():
        found.setdefault(names[int(events.name[row])], []).append(row)
    return found


def _numbers(inputs: Inputs) -> Iterator[int]:
    return _leaves([inputs.shapes, inputs.strides])


def _count(inputs: Inputs) -> int:
    return sum(1 for _ in _numbers(inputs))


def _leaves(lists: Any) -> Iterator[int]:
    for each in lists:
        if isinstance(each, list):
            yield from _leaves(each)
        elif _is_size(each):
            yield each


def _kind(inputs: Inputs) -> Any:
    """Return everything but the numbers."""
    return _with_numbers([inputs.shapes, inputs.strides], repeat(0))


def _with_numbers(lists: Any, numbers: Iterator[int]) -> Any:
    """Return the same lists with other numbers."""
    if isinstance(lists, list):
        return [_with_numbers(each, numbers) for each in lists]
    return next(numbers) if _is_size(lists) else lists


def _is_size(value: Any) -> bool:
    """Return whether a value can be a size or a stride; damaged traces hold numbers of any length."""
    return type(value) is int and abs(value) <= MOST_BYTES
