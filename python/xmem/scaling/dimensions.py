"""Named dimensions of a script (batch, sequence length, ...), and points in them."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TypeAlias

from xmem.errors import ConfigError

Point: TypeAlias = Mapping[str, int]
"""A value for every dimension."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


MOST_VALUE = 1_000_000_000
"""Of a dimension; its powers still fit 64 bits where memory is a polynomial of low degree."""


def require_point(point: Point) -> None:
    """Check the names and values of a point from a file.

    Raises:
        ValueError: A name is no name, or a value is not from 1 to ``MOST_VALUE``.
    """
    for name, value in point.items():
        if not _NAME.fullmatch(name) or not 1 <= value <= MOST_VALUE:
            raise ValueError(f"{reprlib.repr(name)} = {value} is no dimension and value")


def parse_values(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``batch=2,3`` into a dimension and its values, ascending.

    Raises:
        ConfigError: It is not of that form, or a value is not a positive whole number or is repeated.
    """
    name, _, values = text.partition("=")
    hint = f"write NAME=VALUE,VALUE with whole numbers from 1 to {MOST_VALUE:,}, such as batch=2,3"
    try:
        numbers = sorted(int(value) for value in values.split(","))
    except ValueError:
        raise ConfigError(f"--dim {text} is invalid", hint) from None
    if (
        not _NAME.fullmatch(name.strip())
        or not 1 <= numbers[0] <= numbers[-1] <= MOST_VALUE
        or len(set(numbers)) != len(numbers)
    ):
        raise ConfigError(f"--dim {text} is invalid", hint)
    return name.strip(), tuple(numbers)


def parse_point(text: str) -> dict[str, int]:
    """Parse ``batch=16,seq=128`` into a point.

    Raises:
        ConfigError: It is not of that form, or a dimension is repeated.
    """
    point: dict[str, int] = {}
    for part in text.split(","):
        name, values = parse_values(part)
        if name in point:
            raise ConfigError(f"{name} appears twice in {text}", "name each dimension once")
        point[name] = values[0]
    return point


def grid(dimensions: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Return every combination of the values, the last dimension changing fastest."""
    return [dict(zip(dimensions, values, strict=True)) for values in product(*dimensions.values())]


def substitute(command: Sequence[str], point: Mapping[str, int | str]) -> list[str]:
    """Return the command with ``{name}`` replaced by the value of that dimension.

    Raises:
        ConfigError: The command does not contain a dimension and would not change with it.
    """
    used = {name for argument in command for name in _PLACEHOLDER.findall(argument)}
    missing = [name for name in point if name not in used]
    if missing:
        raise ConfigError(
            f"the command does not use {{{missing[0]}}}: {' '.join(command)}",
            f"add the argument that sets it, such as --{missing[0]}-size {{{missing[0]}}}",
        )
    return [
        _PLACEHOLDER.sub(lambda match: str(point.get(match[1], match[0])), argument) for argument in command
    ]


def label(point: Point) -> str:
    """Return the point as ``batch=16, seq=128``, for people."""
    return ", ".join(f"{name}={value}" for name, value in point.items())


def volume(point: Point) -> float:
    """Return the product of all dimensions."""
    return math.prod(float(value) for value in point.values())


def require_dimensions(point: Point, names: Iterable[str]) -> None:
    """Check that the point has a value above 0 for each of these dimensions and for no other.

    Raises:
        ConfigError: A dimension is missing, unknown or not positive.
    """
    wanted = ", ".join(f"{name}=N" for name in names)
    if set(point) != set(names) or any(value < 1 for value in point.values()):
        raise ConfigError(
            f"the dimensions {label(point)} are invalid" if point else "no dimension was given",
            f"use {wanted} with whole numbers above 0",
        )
