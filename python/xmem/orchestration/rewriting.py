"""Replaces what a stretch of the run allocates: drops blocks, changes their times, plays them from a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from xmem.orchestration.tape import Tape
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
        tape: Tape,
        stretch: Stretch,
        *,
        recorded: Mapping[int, int] | None = None,
        ends_ns: Mapping[int, int] | None = None,
        categories: Mapping[int, Category] | None = None,
    ) -> None:
        """Put the allocations of a tape into a stretch.

        Args:
            tape: Tape whose allocations are numbered as they come.
            stretch: Stretch to play it in.
            recorded: Rows of allocations that the trace holds too, by number; they keep their ends and all
                else that is known about them.
            ends_ns: Ends of allocations that the tape keeps, by number; the end of the stretch for others.
            categories: Categories of allocations that are not temporary, by number.
        """
        died = np.array(tape.died, np.int64)
        alloc_ns = stretch.times_ns(np.array(tape.born, np.int64), tape.events)
        free_ns = np.where(
            died >= 0,
            stretch.times_ns(died, tape.events),
            np.where(np.array(tape.kept, np.bool_), NEVER, stretch.end_ns),
        )
        for number, end_ns in (ends_ns or {}).items():
            if died[number] < 0:
                free_ns[number] = end_ns
        category = np.full(len(died), Category.TEMPORARY, np.int64)
        for number, known in (categories or {}).items():
            category[number] = known
        new = np.ones(len(died), np.bool_)
        for number, row in (recorded or {}).items():
            self.alloc_ns[row] = alloc_ns[number]
            new[number] = False
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
                "size_bytes": np.array(tape.size_bytes, np.int64)[new],
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
