"""Exact integer polynomials through the sizes that blocks had at a few points.

Sizes of tensors are products and sums of dimensions times the size of an element, so a polynomial either
passes through every size exactly or is wrong: nothing is rounded or fitted by least squares. Of all
polynomials that pass, the one with fewest terms of lowest degree is used. One with a term for each point
passes through any sizes and proves nothing; it is used only without squares, where extrapolation is mild.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from fractions import Fraction
from itertools import combinations, product
from math import gcd, lcm, prod

import numpy as np
from numpy.typing import NDArray

from xmem.errors import ConfigError
from xmem.records import dataclass
from xmem.scaling.dimensions import Point, label

_MAX_DEGREE = 2  # in one dimension: attention is quadratic in the sequence
_TOO_LARGE = 2.0**62
_MAX_DENOMINATOR = 64  # masks of one bit an element, halves of squares

Monomial = tuple[int, ...]
"""Power of each dimension."""


class Certainty(IntEnum):
    """Certainty of a row's polynomial."""

    UNFITTED = 0  # no polynomial passes through the sizes
    DETERMINED = 1  # one without squares passes, with a term for each point: any sizes would have fitted
    VERIFIED = 2  # one passes, with fewer terms than points


@dataclass(frozen=True)
class Polynomials:
    """One polynomial per row.

    Attributes:
        dimensions: Names of the dimensions, in the order of the powers.
        monomials: The columns of ``coefficients``.
        coefficients: int64 [rows, monomials], numerators.
        denominator: int64 [rows].
        certainty: uint8 [rows], a ``Certainty``.
    """

    dimensions: tuple[str, ...]
    monomials: tuple[Monomial, ...]
    coefficients: NDArray[np.int64]
    denominator: NDArray[np.int64]
    certainty: NDArray[np.uint8]

    def at(self, point: Point) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the value of every row (int64), rounded up, and whether it is a non-negative whole number.

        Rows without a polynomial are 0 and do not hold.

        Raises:
            ConfigError: A value is larger than any memory.
        """
        values = [_value(monomial, self.dimensions, point) for monomial in self.monomials]
        largest = np.abs(self.coefficients).astype(float) @ np.array(values, float)
        if largest.max(initial=0.0) >= _TOO_LARGE:
            raise ConfigError(f"{label(point)} has blocks larger than any memory", "use a smaller point")
        numerator = self.coefficients @ np.array(values, np.int64)
        value = -(-numerator // self.denominator)
        holds = (numerator % self.denominator == 0) & (numerator >= 0) & (self.certainty > 0)
        return np.maximum(value, 0), holds


def fit_polynomials(
    dimensions: Sequence[str], points: Sequence[Point], sizes: NDArray[np.int64]
) -> Polynomials:
    """Fit one polynomial per row.

    Args:
        dimensions: Names of the dimensions.
        points: Points at which the sizes were observed.
        sizes: int64 [rows, points].
    """
    dimensions = tuple(dimensions)
    monomials = _candidates(dimensions, points)
    patterns, row_pattern = np.unique(sizes, axis=0, return_inverse=True)
    pattern_coefficients = np.zeros((len(patterns), len(monomials)), np.int64)
    denominator = np.ones(len(patterns), np.int64)
    certainty = np.zeros(len(patterns), np.uint8)
    open_ = np.arange(len(patterns))
    for chosen in _subsets(monomials, len(points)):
        if len(open_) == 0:
            break
        terms = [monomials[column] for column in chosen]
        design = [[_value(term, dimensions, point) for term in terms] for point in points]
        inverse = _left_inverse(design)
        if inverse is None:
            continue
        still_open = []
        for pattern in open_:
            found = _solve(design, inverse, [int(size) for size in patterns[pattern]])
            if found is None:
                still_open.append(pattern)
                continue
            numerators, denominator[pattern] = found
            pattern_coefficients[pattern, list(chosen)] = numerators
            certainty[pattern] = Certainty.VERIFIED if len(chosen) < len(points) else Certainty.DETERMINED
        open_ = np.array(still_open, np.intp)
    row_pattern = row_pattern.ravel()
    return Polynomials(
        dimensions,
        monomials,
        pattern_coefficients[row_pattern],
        denominator[row_pattern],
        certainty[row_pattern],
    )


def _value(monomial: Monomial, dimensions: Sequence[str], point: Point) -> int:
    return prod(point[name] ** power for name, power in zip(dimensions, monomial, strict=True))


def _candidates(dimensions: Sequence[str], points: Sequence[Point]) -> tuple[Monomial, ...]:
    """Return the products of powers that the points can tell apart, lowest degree first."""
    values = [len({point[name] for point in points}) for name in dimensions]
    powers = [range(min(count - 1, _MAX_DEGREE) + 1) for count in values]
    return tuple(sorted(product(*powers), key=lambda monomial: (sum(monomial), monomial)))


def _subsets(monomials: Sequence[Monomial], points: int) -> list[tuple[int, ...]]:
    columns = range(len(monomials))
    sets = [
        chosen
        for size in range(1, min(len(monomials), points) + 1)
        for chosen in combinations(columns, size)
        if size < points or max(power for column in chosen for power in monomials[column]) < 2
    ]
    return sorted(sets, key=lambda chosen: (len(chosen), sum(sum(monomials[c]) for c in chosen), chosen))


def _left_inverse(design: list[list[int]]) -> tuple[list[int], list[list[Fraction]]] | None:
    """Return points that determine the coefficients, and the matrix to compute them; None when none do."""
    terms = len(design[0])
    rows: list[int] = []
    reduced: list[list[Fraction]] = []
    for row, values in enumerate(design):
        rest = [Fraction(value) for value in values]
        for done in reduced:
            pivot = next(i for i, value in enumerate(done) if value)
            factor = rest[pivot] / done[pivot]
            rest = [a - factor * b for a, b in zip(rest, done, strict=True)]
        if any(rest):
            reduced.append(rest)
            rows.append(row)
            if len(rows) == terms:
                return rows, _inverse([[Fraction(value) for value in design[r]] for r in rows])
    return None


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Invert a regular matrix by Gauss-Jordan elimination."""
    size = len(matrix)
    work = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(row for row in range(column, size) if work[row][column])
        work[column], work[pivot] = work[pivot], work[column]
        work[column] = [value / work[column][column] for value in work[column]]
        for row in range(size):
            if row != column and work[row][column]:
                factor = work[row][column]
                work[row] = [a - factor * b for a, b in zip(work[row], work[column], strict=True)]
    return [row[size:] for row in work]


def _solve(
    design: list[list[int]], inverse: tuple[list[int], list[list[Fraction]]], sizes: list[int]
) -> tuple[list[int], int] | None:
    """Return numerators and their denominator if the polynomial passes through every size."""
    rows, matrix = inverse
    chosen = [sizes[row] for row in rows]
    coefficients = [sum(a * b for a, b in zip(line, chosen, strict=True)) for line in matrix]
    if not all(coefficients) and any(sizes):
        return None  # a smaller set of terms was tried already
    denominator = lcm(*(Fraction(c).denominator for c in coefficients))
    numerators = [int(c * denominator) for c in coefficients]
    if denominator > _MAX_DENOMINATOR:
        return None
    for values, size in zip(design, sizes, strict=True):
        if sum(a * b for a, b in zip(values, numerators, strict=True)) != size * denominator:
            return None
    common = gcd(denominator, *numerators) or 1
    return [n // common for n in numerators], denominator // common
