"""Replaces what a stretch of the run allocates: drops blocks, changes their times, plays them from a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from xmem.orchestration.tape import Allocations
from xmem.records import dataclass
from xmem.run.workload import Workload, concatenated, made_by_policy
from xmem.trace.attribution import Category, Phase
from xmem.trace.blocks import NEVER


@dataclass(frozen=True)
class Stretch:
    """A piece of the run that a tape replaces.

    Attributes:
        begin_ns: When it begins; events of the tape follow a nanosecond apart.
        end_ns: When it ends.
        phase: Phase of new blocks.
        iteration: Iteration of new blocks.
        operator: Operator of new blocks, row of the EventTable, -1 = none.
        module: Module of new blocks, index into ``Attribution.modules``, -1 = none.
        source_line: Source line of new blocks, index into ``Attribution.lines``, -1 = none.
    """

    begin_ns: int
    end_ns: int
    phase: Phase
    iteration: int
    operator: int = -1
    module: int = -1
    source_line: int = -1

    def times_ns(self, event: NDArray[np.int64], events: int) -> NDArray[np.int64]:
        """Return the times of events of a tape with ``events`` events: in order, and inside the stretch."""
        room = self.end_ns - self.begin_ns
        return self.begin_ns + (event if events <= room else event * room // events)


@dataclass
class Rewriting:
    """Changes to a workload, collected and then applied at once.

    Attributes:
        workload: Workload before the changes.
    """

    workload: Workload
    _dropped: list[int] = field(default_factory=list)
    _added: list[dict[str, NDArray[np.int64]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.alloc_ns = self.workload.alloc_ns.copy()
        self.free_ns = self.workload.free_ns.copy()
        self.size_bytes = self.workload.size_bytes.copy()

    def drop(self, rows: Sequence[int]) -> None:
        """Leave blocks out."""
        self._dropped.extend(rows)

    def extend(self, row: int, until_ns: int) -> None:
        """Let a block live until a time, if it does not live longer anyway."""
        self.free_ns[row] = max(int(self.free_ns[row]), until_ns)

    def resize(self, row: int, size_bytes: int) -> None:
        """Give a block another size."""
        self.size_bytes[row] = size_bytes

    def play(
        self,
        played: Allocations,
        stretch: Stretch,
        *,
        recorded: Mapping[int, int] | None = None,
        ends_ns: Mapping[int, int] | None = None,
        categories: Mapping[int, Category] | None = None,
    ) -> None:
        """Put the allocations of a tape into a stretch.

        Args:
            played: Allocations, numbered as they come.
            stretch: Stretch to play it in.
            recorded: Rows of allocations that the trace holds too, by number; they keep their ends and all
                else that is known about them.
            ends_ns: Ends of allocations that the tape keeps, by number; the end of the stretch for others.
            categories: Categories of allocations that are not temporary, by number.
        """
        died = played.died
        alloc_ns = stretch.times_ns(played.born, played.events)
        free_ns = np.where(
            died >= 0,
            stretch.times_ns(died, played.events),
            np.where(played.kept, NEVER, stretch.end_ns),
        )
        numbers, until_ns = _columns(ends_ns)
        open_ended = died[numbers] < 0
        free_ns[numbers[open_ended]] = until_ns[open_ended]
        category = np.full(len(died), Category.TEMPORARY, np.int64)
        numbers, known = _columns(categories)
        category[numbers] = known
        new = np.ones(len(died), np.bool_)
        numbers, rows = _columns(recorded)
        self.alloc_ns[rows] = alloc_ns[numbers]
        new[numbers] = False
        same = {
            "phase": stretch.phase,
            "iteration": stretch.iteration,
            "operator": stretch.operator,
            "root_operator": stretch.operator,
            "module": stretch.module,
            "source_line": stretch.source_line,
        }
        self._added.append(
            {
                "size_bytes": played.size_bytes[new],
                "alloc_ns": alloc_ns[new],
                "free_ns": free_ns[new],
                "category": category[new],
                **{name: np.full(int(new.sum()), value, np.int64) for name, value in same.items()},
            }
        )

    def finish(self) -> Workload:
        """Return the workload with all changes, in order of allocation."""
        kept = np.ones(len(self.workload), np.bool_)
        kept[self._dropped] = False
        changed = self.workload.with_columns(
            alloc_ns=self.alloc_ns, free_ns=self.free_ns, size_bytes=self.size_bytes
        ).select(kept)
        names = self._added[0] if self._added else ()
        columns = {name: np.concatenate([each[name] for each in self._added]) for name in names}
        added = made_by_policy(len(columns.get("size_bytes", ())), **columns)
        return concatenated([added, changed])


def _columns(mapping: Mapping[int, int] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys and the values of a mapping."""
    given = mapping or {}
    count = len(given)
    return np.fromiter(given, np.int64, count), np.fromiter(given.values(), np.int64, count)
