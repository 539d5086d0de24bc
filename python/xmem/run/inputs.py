"""Inputs of operators: from a trace, or at a point of a fitted model."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple, Protocol

from xmem.text.units import MOST_BYTES
from xmem.trace.trace import Trace

_NUMBER = re.compile(r"-?[0-9]{1,18}")
_WHOLE_LIST = re.compile(rf"\[\s*(?:{_NUMBER.pattern}(?:\s*,\s*{_NUMBER.pattern})*)?\s*\]")


class Inputs(NamedTuple):
    """The inputs of an operator, by position.

    Traces come from anywhere, so what the lists hold is checked when it is asked for: what no operator can
    have been given counts as unknown.

    Attributes:
        shapes: Shapes of tensors, empty for everything else and for what the profiler does not look into.
        strides: Likewise their strides, in elements.
        values: Numbers and flags, as Python writes them; empty for tensors.
    """

    shapes: list[Any]
    strides: list[Any]
    values: list[str]

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of a tensor; empty if there is none."""
        return _shape(_at(self.shapes, position))

    def shapes_in(self, position: int) -> list[tuple[int, ...]]:
        """Return the shapes of a list of tensors, or of a single one; empty if there are none."""
        found = _at(self.shapes, position)
        if not isinstance(found, list) or not found:
            return []
        shapes = [_shape(each) for each in (found if isinstance(found[0], list) else [found])]
        return shapes if all(shapes) else []

    def stride(self, position: int) -> tuple[int, ...]:
        """Return as many strides of a tensor as it has dimensions; empty if they are not known."""
        strides = _whole_numbers(_at(self.strides, position))
        return strides if len(strides) == len(self.shape(position)) else ()

    def integer(self, position: int) -> int | None:
        """Return a whole number, None if there is none."""
        text = self.value(position)
        return int(text) if _NUMBER.fullmatch(text) else None

    def integers(self, position: int) -> tuple[int, ...] | None:
        """Return a list of whole numbers, such as the steps of a convolution; None if there is none."""
        text = self.value(position)
        return tuple(map(int, _NUMBER.findall(text))) if _WHOLE_LIST.fullmatch(text) else None

    def number(self, position: int) -> float | None:
        """Return a finite number, None if there is none."""
        try:
            found = float(self.value(position))
        except ValueError:
            return None
        return found if math.isfinite(found) else None

    def flag(self, position: int) -> bool:
        """Return whether a flag is set; false if there is none."""
        return self.value(position) == "True"

    def value(self, position: int) -> str:
        """Return a number or a flag as Python writes it, or a list of them; empty if there is none."""
        text = _at(self.values, position)
        return text if isinstance(text, str) else ""


class InputsByRow(Protocol):
    """Inputs of the operators of one run."""

    def of(self, row: int) -> Inputs | None:
        """Return the inputs of a row of the EventTable; None if they are not known."""


class RecordedInputs:
    """Inputs from a trace; equal texts are parsed once."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._known: dict[int, Inputs] = {}

    def of(self, row: int) -> Inputs | None:
        """Return the inputs of a row of the EventTable; None if the trace does not say."""
        name = int(self._trace.events.inputs[row])
        if name < 0:
            return None
        if name not in self._known:
            lists = [each if isinstance(each, list) else [] for each in self._trace.names.list_in(name)]
            self._known[name] = Inputs(*lists) if len(lists) == len(Inputs._fields) else Inputs([], [], [])
        return self._known[name]


def _at(values: list[Any], position: int) -> Any:
    return values[position] if position < len(values) else None


def _shape(value: Any) -> tuple[int, ...]:
    """Return a shape; empty if it is none, or one that no device holds."""
    sizes = _whole_numbers(value)
    return sizes if all(size >= 0 for size in sizes) and math.prod(sizes) <= MOST_BYTES else ()


def _whole_numbers(value: Any) -> tuple[int, ...]:
    is_plain = isinstance(value, list) and all(
        type(each) is int and abs(each) <= MOST_BYTES for each in value
    )
    return tuple(value) if is_plain else ()
