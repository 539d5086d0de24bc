"""Both runs at the place of one run's peak, with the memory that the other one held there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from xmem.difference.comparison import Instant, SizeChange
from xmem.difference.paths import Common, Path, Rows
from xmem.estimation.estimate import SLACK

_FoundBy = Literal["path", "operator", "phase"]


def instants(before: Rows, after: Rows, common: Common) -> tuple[Instant, ...]:
    """Return both runs at the place of the first one's peak, and at that of the second one's."""
    found = (
        _instant(before, after, common, peak_of=0),
        _instant(before, after, common, peak_of=1),
    )
    return tuple(instant for instant in found if instant is not None)


def _instant(before: Rows, after: Rows, common: Common, *, peak_of: int) -> Instant | None:
    """Return both runs at the place of a peak, None where the other run never reaches that phase."""
    sides = before, after
    own, other = sides[peak_of], sides[1 - peak_of]
    place = own.paths[own.path[_peak_row(own)]]
    request = _same_place(other, place, common, peak_of)
    if request is None:
        return None
    at = [request[1], request[1]]
    at[peak_of] = own.analysis.replay.peak_allocated.request
    categories = [_categories(rows, instant) for rows, instant in zip(sides, at, strict=True)]
    names = sorted({*categories[0], *categories[1]})
    changes = [SizeChange(name, categories[0].get(name, 0), categories[1].get(name, 0)) for name in names]
    allocated = [
        int(rows.analysis.replay.timeline.allocated_bytes[instant])
        for rows, instant in zip(sides, at, strict=True)
    ]
    return Instant(
        peak_of="before" if peak_of == 0 else "after",
        phase=place.phase,
        operator=place.operator,
        module=common.module(place.module, peak_of),
        source_line=common.source_line(place.source_line, peak_of),
        found_by=request[0],
        before_bytes=allocated[0],
        after_bytes=allocated[1],
        category=tuple(sorted(changes, key=lambda change: -abs(change.change_bytes))),
    )


def _peak_row(rows: Rows) -> int:
    """Return the block whose allocation raised the peak."""
    return int(rows.analysis.stages.requests.block[rows.analysis.replay.peak_allocated.request])


def _same_place(rows: Rows, place: Path, common: Common, side: int) -> tuple[_FoundBy, int] | None:
    """Return the birth in a run, at a place like another run's, after which the run holds most."""
    wanted = common.key(place, side)
    tries: tuple[tuple[_FoundBy, Callable[[Path], bool]], ...] = (
        (
            "path",
            lambda path: common.key(path._replace(category=place.category), 1 - side) == wanted,
        ),
        ("operator", lambda path: (path.phase, path.operator) == (place.phase, place.operator)),
        ("phase", lambda path: path.phase == place.phase),
    )
    for found_by, alike in tries:
        chosen = np.array([alike(path) for path in rows.paths], np.bool_)
        born = _births(rows, chosen)
        if len(born):
            allocated = rows.analysis.replay.timeline.allocated_bytes[born]
            return found_by, int(born[int(np.argmax(allocated))])
    return None


def _births(rows: Rows, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the requests that the replay reached and that allocate a block of one of these paths."""
    done = len(rows.analysis.replay.timeline.allocated_bytes)
    requests = rows.holders.alloc_request[chosen[rows.path]]
    born: NDArray[np.int64] = requests[requests < done]
    return born


def _categories(rows: Rows, request: int) -> dict[str, int]:
    alive = rows.holders.alive_at(request)
    sizes: dict[str, int] = {}
    taken = np.zeros(len(rows.paths), np.int64)
    np.add.at(taken, rows.path[alive], rows.taken[alive])
    for index in np.flatnonzero(taken).tolist():
        category = rows.paths[index].category
        sizes[category] = sizes.get(category, 0) + int(taken[index])
    slack = int(rows.analysis.replay.timeline.allocated_bytes[request]) - sum(sizes.values())
    return sizes | ({SLACK: slack} if slack else {})
