"""What operators were given: as a trace says, or at a point of a fitted model."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Protocol

from xmem.trace import Trace


class Inputs(NamedTuple):
    """What an operator was given, by position.

    Attributes:
        shapes: Of tensors, empty for all else and for what the profiler does not look into.
        strides: The same of their strides, in elements.
        values: Of numbers and flags, as Python writes them; empty for tensors.
    """

    shapes: list[Any]
    strides: list[Any]
    values: list[str]

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of a tensor; empty where there is none."""
        return _integers(self.shapes, position)

    def stride(self, position: int) -> tuple[int, ...]:
        """The strides of a tensor; empty where there is none."""
        return _integers(self.strides, position)

    def integer(self, position: int) -> int | None:
        """A whole number, None where there is none."""
        text = self.value(position)
        return int(text) if text.lstrip("-").isdigit() else None

    def value(self, position: int) -> str:
        """A number or a flag as Python writes it, or a list of them; empty where there is none."""
        text = self.values[position] if position < len(self.values) else ""
        return text if isinstance(text, str) else ""


class InputsByRow(Protocol):
    """Inputs of operators, of one run."""

    def of(self, row: int) -> Inputs | None:
        """Those of a row of the EventTable; None where they are not known."""


class RecordedInputs:
    """Inputs as a trace has them; those of a text are parsed once."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._known: dict[int, Inputs] = {}

    def of(self, row: int) -> Inputs | None:
        """Those of a row of the EventTable; None where the trace does not say."""
        name = int(self._trace.events.inputs[row])
        if name < 0:
            return None
        if name not in self._known:
            lists = json.loads(self._trace.names[name])
            self._known[name] = Inputs(*(each if isinstance(each, list) else [] for each in lists))
        return self._known[name]


def _integers(lists: list[Any], position: int) -> tuple[int, ...]:
    found = lists[position] if position < len(lists) else []
    is_plain = isinstance(found, list) and all(isinstance(number, int) for number in found)
    return tuple(found) if is_plain else ()
