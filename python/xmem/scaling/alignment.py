"""Alignment of the blocks of runs of different size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.estimation.observation import Observation

Int64 = NDArray[np.int64]


def align_blocks(base: Observation, others: Sequence[Observation]) -> list[NDArray[np.int32]]:
    """Return for each other run the row of its workload for every row of the base's, -1 = none.

    Blocks are matched by their origin: innermost and outermost operator, module, phase, iteration, stream;
    and then by their order.

    Raises:
        ConfigError: The runs differ too much to be from one script.
    """
    keys = _shared_keys([base, *others])
    return [_core.align(keys[0], other) for other in keys[1:]]


def changed_lifetimes(
    base: Observation, other: Observation, counterpart: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return for every block of the base whether the other run frees its counterpart at another place: before
    or after another allocation, counted over aligned blocks alone.
    """
    rows = np.flatnonzero(counterpart >= 0)
    places = [
        np.searchsorted(workload.alloc_ns[chosen], workload.free_ns[chosen])
        for workload, chosen in ((base.workload, rows), (other.workload, counterpart[rows]))
    ]
    changed = np.zeros(len(counterpart), np.bool_)
    changed[rows] = places[0] != places[1]
    return changed


def _shared_keys(observations: Sequence[Observation]) -> list[Int64]:
    """Return a number for every block, the same for blocks of one origin in all runs."""
    numbers: dict[str, int] = {}
    columns = [_origin_columns(observed, _numbering(numbers)) for observed in observations]
    _, keys = np.unique(np.concatenate(columns), axis=0, return_inverse=True)
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return [np.ascontiguousarray(part, np.int64) for part in np.split(keys.ravel(), ends)]


def _origin_columns(observed: Observation, number: Callable[[Iterable[str]], Int64]) -> Int64:
    workload, recorded = observed.workload, observed.recorded
    names = recorded.trace.names
    name_numbers = np.append(number(names[i] for i in range(len(names))), -1)
    module_numbers = np.append(number(recorded.attribution.modules), -1)
    name_of = np.append(recorded.trace.events.name, -1)
    return np.stack(
        [
            name_numbers[name_of[workload.operator]],
            name_numbers[name_of[workload.root_operator]],
            module_numbers[workload.module],
            workload.phase.astype(np.int64),
            workload.iteration.astype(np.int64),
            workload.stream,
        ],
        axis=1,
    )


def _numbering(numbers: dict[str, int]) -> Callable[[Iterable[str]], Int64]:
    """Return a function that numbers texts, the same for equal texts of all runs."""
    return lambda texts: np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
