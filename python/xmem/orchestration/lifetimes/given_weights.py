"""Weights of a model that was made before the profiler began, by what a run without gradients hands to
operators.

A trace names no tensors: the same weight in two iterations looks like two weights of one shape. So one pass
through the model is told from the next: by the marks of the profiler, and within them by the sequence of
weights, which repeats itself from pass to pass whatever the lengths of the inputs. Layers repeat themselves
too. What tells a pass from a layer is how it begins: with an operator that no layer calls, or with an input
that was there before, where a layer takes what the layer before it made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from xmem.dtypes import item_bytes
from xmem.records import dataclass
from xmem.run.inputs import Inputs
from xmem.run.operators import ANNOTATION, OPERATOR
from xmem.run.recorded import Recorded
from xmem.text.units import MOST_BYTES

_EMBEDDING = "aten::embedding"
_LINEAR = "aten::linear"

WEIGHTS_OF = {
    _EMBEDDING: (0,),
    _LINEAR: (1, 2),
    "aten::_convolution": (1, 2),
    "aten::addmm": (0, 2),
    "aten::batch_norm": (1, 2, 3, 4),
    "aten::group_norm": (2, 3),
    "aten::instance_norm": (1, 2, 3, 4),
    "aten::layer_norm": (2, 3),
    "aten::rms_norm": (2,),
}
"""Positions of parameters and buffers among the inputs of operators."""

_BEGINNINGS = frozenset({"aten::lift_fresh", "aten::rand", "aten::randint", "aten::randn"})
"""Operators at the beginning of an iteration, which layers do not call."""

_GRANULE_BYTES = 512  # a GPU's memory events have the sizes of blocks


@dataclass(frozen=True)
class GivenWeights:
    """Weights that operators were given in one pass through a model.

    Attributes:
        sizes: Bytes of each.
        tied_bytes: Bytes of the last one if it may be another one once more: the last layer of a language
            model can have the weight of the embedding.
        passes: How many equal passes were found in the part of the run with most weights.
    """

    sizes: tuple[int, ...] = ()
    tied_bytes: int = 0
    passes: int = 1

    @property
    def words(self) -> str:
        """What was counted, in words."""
        of_one = f" in one of {self.passes} equal passes" if self.passes > 1 else ""
        return f"the weights that its operators were given{of_one}"


def given_weights(context: Recorded) -> GivenWeights:
    """Find the weights of the iteration that has most of them, each once."""
    calls = _Calls(context, _fullest(_weighted(context), context))
    length = calls.pass_length
    if not length:
        return GivenWeights()
    sizes, largest = [], 0  # the largest embedding
    tied_bytes = 0
    for row, (name, shapes) in zip(calls.rows[:length].tolist(), calls.shapes, strict=False):
        given = [input_bytes(context, [row], place)[0] for place in WEIGHTS_OF[name]]
        sizes += [size for size in given if size]
        if name == _EMBEDDING and given[0] > largest:
            largest, vocabulary = given[0], shapes[0]
        tied_bytes = given[0] if name == _LINEAR and largest and shapes[0] == vocabulary else 0
    return GivenWeights(tuple(sizes), tied_bytes, len(calls.rows) // length)


def input_bytes(context: Recorded, rows: Iterable[int], place: int) -> list[int]:
    """Return the bytes of a tensor that each operator was given, 0 where the trace does not say, or says what
    no device holds."""
    operators = context.operators
    asked = np.fromiter(rows, np.int64)
    sizes: dict[int, int] = {}  # steps repeat: few inputs differ
    written = operators.written_inputs(asked).tolist()
    for row, same in zip(asked.tolist(), written, strict=True):
        if same not in sizes:
            sizes[same] = _bytes_of(operators.inputs(row), operators.input_types(row), place)
    return [sizes[same] for same in written]


def _bytes_of(inputs: Inputs | None, types: Sequence[str], place: int) -> int:
    shape = () if inputs is None else inputs.shape(place)
    item = item_bytes(types[place]) if place < len(types) else None
    size = prod(shape) * item if shape and item else 0
    return size if 0 <= size <= MOST_BYTES else 0


def _weighted(context: Recorded) -> NDArray[np.intp]:
    """Return the rows of operators that were given weights, by time."""
    operators, events = context.operators, context.trace.events
    rows = np.flatnonzero(operators.rows_named(WEIGHTS_OF))
    parent = operators.parent[rows]
    rows = rows[(parent < 0) | ~np.isin(parent, rows)]  # as autocast calls the same operator once more
    return rows[np.argsort(events.begin_ns[rows], kind="stable")]


def _fullest(rows: NDArray[np.intp], context: Recorded) -> NDArray[np.intp]:
    """Return the rows of the iteration that has most, by the marks of the profiler."""
    operators, events = context.operators, context.trace.events
    marks = operators.rows_named(lambda name: name.startswith("ProfilerStep#"), ANNOTATION)
    begins = np.sort(events.begin_ns[marks])
    number = np.searchsorted(begins, events.begin_ns[rows], side="right")
    return rows if not len(rows) else rows[number == np.argmax(np.bincount(number))]


@dataclass(frozen=True)
class _Calls:
    """Operators with weights, by time."""

    context: Recorded
    rows: NDArray[np.intp]

    @cached_property
    def shapes(self) -> list[tuple[str, tuple[tuple[int, ...], ...]]]:
        """Name of each, and the shapes of its weights."""
        events, names = self.context.trace.events, self.context.trace.names
        found = []
        for row in self.rows.tolist():
            name, inputs = names[int(events.name[row])], self.context.operators.inputs(row)
            places = WEIGHTS_OF[name]
            found.append((name, tuple(() if inputs is None else inputs.shape(place) for place in places)))
        return found

    @cached_property
    def pass_length(self) -> int:
        """Number of calls in one pass, all of them where nothing tells passes apart: weights are then rather
        counted twice than missed."""
        numbers: dict[object, int] = {}
        values = [numbers.setdefault(each, len(numbers)) for each in self.shapes]
        for period in periods(values):
            if period > len(values) // 2:
                break
            if self._begins_anew(period):
                return period
        return len(values)

    def _begins_anew(self, period: int) -> bool:
        """Return whether what begins after so many calls is a pass, rather than a layer."""
        if all(name == _EMBEDDING for name, _ in self.shapes[:period]):  # tables of the same size
            return False
        if self.shapes[0][0] == _EMBEDDING:
            return True
        events, operators = self.context.trace.events, self.context.operators
        firsts = np.arange(period, len(self.rows), period)
        outer = (events.kind == OPERATOR) & (operators.parent < 0)
        beginnings = np.sort(events.begin_ns[operators.rows_named(_BEGINNINGS) & outer])
        left = events.end_ns[self.rows[firsts - 1]]
        between = np.searchsorted(beginnings, events.begin_ns[self.rows[firsts]]) - np.searchsorted(
            beginnings, left
        )
        return bool((between > 0).all()) or not self._makes_its_input(period)

    def _makes_its_input(self, period: int) -> bool:
        """Return whether a tensor as large as the first input was made between the beginning of the calls and
        the next ones, so that it may be that input."""
        context = self.context
        blocks, (device_type, device) = context.blocks, context.traced_device
        place = 1 if self.shapes[0][0] == "aten::addmm" else 0
        size = input_bytes(context, [int(self.rows[0])], place)[0]
        begin, end = context.trace.events.begin_ns[self.rows[[0, period]]]
        made = (blocks.device_type == device_type) & (blocks.device_index == device)
        made &= (blocks.alloc_ns >= begin) & (blocks.alloc_ns < end)
        granules = -(-blocks.size_bytes[made] // _GRANULE_BYTES)
        return size == 0 or bool((granules == -(-size // _GRANULE_BYTES)).any())


def periods(values: Sequence[int]) -> Iterator[int]:
    """Yield the lengths after which all of a sequence repeats itself, ascending, in linear time: what is left
    beside each of its borders (the prefix function of Knuth, Morris and Pratt)."""
    borders = [0] * len(values)
    for place in range(1, len(values)):
        border = borders[place - 1]
        while border and values[place] != values[border]:
            border = borders[border - 1]
        borders[place] = border + (values[place] == values[border])
    border = borders[-1] if values else 0
    while border:
        yield len(values) - border
        border = borders[border - 1]
