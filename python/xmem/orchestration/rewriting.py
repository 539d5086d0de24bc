"""Replaces what a stretch of the run allocates: drops blocks, changes their times, plays them from a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from xmem.orchestration.tape import Tape
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

    def time_ns(self, event: int, events: int) -> int:
        """Return the time of an event of a tape with ``events`` events: in order, and inside the stretch."""
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
    _columns: dict[str, list[int]] = field(default_factory=dict)

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
        for number, size_bytes in enumerate(tape.size_bytes):
            alloc_ns = stretch.time_ns(tape.born[number], tape.events)
            if recorded and number in recorded:
                self.alloc_ns[recorded[number]] = alloc_ns
                continue
            if tape.died[number] >= 0:
                free_ns = stretch.time_ns(tape.died[number], tape.events)
            else:
                free_ns = (ends_ns or {}).get(number, NEVER if tape.kept[number] else stretch.end_ns)
            self._add(
                size_bytes=size_bytes,
                alloc_ns=alloc_ns,
                free_ns=free_ns,
                category=(categories or {}).get(number, Category.TEMPORARY),
                phase=stretch.phase,
                iteration=stretch.iteration,
                operator=stretch.operator,
                root_operator=stretch.operator,
                module=stretch.module,
                source_line=stretch.source_line,
            )

    def _add(self, **row: int) -> None:
        for name, value in row.items():
            self._columns.setdefault(name, []).append(value)

    def finish(self) -> Workload:
        """Return the workload with all changes, in order of allocation."""
        kept = np.ones(len(self.workload), np.bool_)
        kept[self._dropped] = False
        changed = self.workload.with_columns(
            alloc_ns=self.alloc_ns, free_ns=self.free_ns, size_bytes=self.size_bytes
        ).select(kept)
        added = made_by_policy(
            len(self._columns.get("size_bytes", [])),
            **{name: np.array(values) for name, values in self._columns.items()},
        )
        return concatenated([added, changed])
