"""Blocks alive at the peaks that appeared, disappeared or have another size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.difference.comparison import BlockChange
from xmem.difference.names import pattern
from xmem.difference.paths import Common, Path, Rows
from xmem.errors import ConfigError

_MOST_GROUPS = 50

_Group = tuple[Path, int | None, int | None]
"""Path with a pattern for module, size before, size after."""


def block_changes(before: Rows, after: Rows, common: Common) -> tuple[BlockChange, ...]:
    """Return the largest changes of single blocks; modules whose paths differ only by numbers share a row."""
    named: dict[Hashable, Path] = {}
    sizes = [_by_path(rows, common, side, named) for side, rows in enumerate((before, after))]
    groups: dict[_Group, int] = defaultdict(int)
    nothing = np.zeros(0, np.int64)
    for key, path in named.items():
        for old, new in _paired(sizes[0].get(key, nothing), sizes[1].get(key, nothing)):
            if old != new:
                groups[path, old, new] += 1
    _drop_moved_to_another_operator(groups)
    changes = [
        BlockChange(path.category, path.module, path.operator, path.source_line, path.phase, blocks, old, new)
        for (path, old, new), blocks in groups.items()
        if blocks
    ]
    changes.sort(key=lambda change: (-abs(change.change_bytes), -change.blocks))
    return tuple(changes[:_MOST_GROUPS])


def _drop_moved_to_another_operator(groups: dict[_Group, int]) -> None:
    """Drop blocks that disappeared if as many of their size, module and line appeared."""
    came: dict[Hashable, list[_Group]] = defaultdict(list)
    for group in groups:
        path, old, new = group
        if old is None:
            came[path._replace(operator=None), new].append(group)
    for group in groups:
        path, old, new = group
        if new is None:
            for other in came[path._replace(operator=None), old]:
                both = min(groups[group], groups[other])
                groups[group] -= both
                groups[other] -= both


def _by_path(
    rows: Rows, common: Common, side: int, named: dict[Hashable, Path]
) -> dict[Hashable, NDArray[np.int64]]:
    """Return the sizes of the blocks alive at the peak, in order, by names that both runs share."""
    order = rows.alive[np.argsort(rows.path[rows.alive], kind="stable")]
    indices, starts = np.unique(rows.path[order], return_index=True)
    sizes: dict[Hashable, NDArray[np.int64]] = {}
    for index, part in zip(indices.tolist(), np.split(order, starts[1:]), strict=True):
        path = rows.paths[index]
        key = common.key(path, side)
        module = common.module(path.module, side)
        named[key] = path._replace(
            module=None if module is None else pattern(module),
            source_line=common.source_line(path.source_line, side),
        )
        sizes[key] = np.append(sizes[key], rows.taken[part]) if key in sizes else rows.taken[part]
    return sizes


def _paired(old: NDArray[np.int64], new: NDArray[np.int64]) -> Iterator[tuple[int | None, int | None]]:
    """Pair the n-th blocks of a path; if their numbers differ, pair equal sizes first."""
    if len(old) == len(new):
        yield from zip(old.tolist(), new.tolist(), strict=True)
        return
    try:
        swapped = len(old) > len(new)  # so that the order of the runs makes no difference
        left, right = (new, old) if swapped else (old, new)
        partner = _core.align(np.ascontiguousarray(left), np.ascontiguousarray(right))
    except ConfigError:  # too many differ
        partner = np.full(len(left), -1, np.int32)
    for one, other in _between(left.tolist(), right.tolist(), partner):
        yield (other, one) if swapped else (one, other)


def _between(
    left: Sequence[int], right: Sequence[int], partner: NDArray[np.int32]
) -> Iterator[tuple[int | None, int | None]]:
    """Pair the rows between aligned rows in order."""
    begin = 0, 0
    anchors = [(i, int(partner[i])) for i in np.flatnonzero(partner >= 0).tolist()]
    for i, j in [*anchors, (len(left), len(right))]:
        gap_left, gap_right = left[begin[0] : i], right[begin[1] : j]
        paired = min(len(gap_left), len(gap_right))
        yield from zip(gap_left[:paired], gap_right[:paired], strict=True)
        yield from ((size, None) for size in gap_left[paired:])
        yield from ((None, size) for size in gap_right[paired:])
        if i < len(left):
            yield left[i], right[j]
        begin = i + 1, j + 1
