"""Inputs of operators: from a trace, or at a point of a fitted model."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Protocol

from xmem.text.units import MOST_BYTES
from xmem.trace.trace import Trace

_WHOLE = re.compile(r"-?[0-9]{1,18}")


class Inputs(NamedTuple):
    """The inputs of an operator, by position.

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
        return _integers(self.shapes, position)

    def stride(self, position: int) -> tuple[int, ...]:
        """Return the strides of a tensor; empty if there is none."""
        return _integers(self.strides, position)

    def integer(self, position: int) -> int | None:
        """Return a whole number, None if there is none."""
        text = self.value(position)
        return int(text) if _WHOLE.fullmatch(text) else None

    def value(self, position: int) -> str:
        """Return a number or a flag as Python writes it, or a list of them; empty if there is none."""
        text = self.values[position] if position < len(self.values) else ""
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


def _integers(lists: list[Any], position: int) -> tuple[int, ...]:
    found = lists[position] if position < len(lists) else []
    is_plain = isinstance(found, list) and all(
        type(each) is int and abs(each) <= MOST_BYTES for each in found
    )
    return tuple(found) if is_plain else ()
