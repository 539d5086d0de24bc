"""The allocations and frees of a piece of Python code, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from xmem.records import dataclass


@dataclass(frozen=True)
class Allocations:
    """What a tape holds: a row for each allocation, as they come.

    Attributes:
        size_bytes: int64.
        born: int64, number of the allocation among all events.
        died: int64, number of its free, -1 = never.
        kept: bool, whether it is permanent.
        events: Number of allocations and frees.
    """

    size_bytes: NDArray[np.int64]
    born: NDArray[np.int64]
    died: NDArray[np.int64]
    kept: NDArray[np.bool_]
    events: int

    @classmethod
    def in_turn(cls, tapes: Sequence[Allocations], order: NDArray[np.intp]) -> Allocations:
        """Return tapes that have ended, one after the other.

        Args:
            tapes: Each tape once.
            order: The index of each tape that is played, in order; one may be played any number of times.
        """
        if not len(order):
            return Tape().allocations()
        lengths = np.array([len(tape.born) for tape in tapes])
        played = lengths[order]
        ends = np.cumsum(played)
        rows = np.repeat(np.cumsum(lengths)[order] - ends, played) + np.arange(ends[-1])
        events = np.array([tape.events for tape in tapes])[order]
        begins = np.repeat(np.cumsum(events) - events, played)
        size_bytes, born, died, kept = (
            np.concatenate([getattr(tape, column) for tape in tapes])[rows]
            for column in ("size_bytes", "born", "died", "kept")
        )
        return cls(
            size_bytes, begins + born, np.where(died < 0, died, begins + died), kept, int(events.sum())
        )


class Tape:
    """Allocations and frees, numbered as they come.

    Attributes:
        size_bytes: Size of each allocation.
        born: Number of each allocation among all events.
        died: Number of its free, -1 = never.
        kept: Whether each allocation is permanent.
        events: Number of allocations and frees.
    """

    def __init__(self) -> None:
        self.size_bytes: list[int] = []
        self.born: list[int] = []
        self.died: list[int] = []
        self.kept: list[bool] = []
        self.events = 0
        self._references: list[int] = []

    def new(self, size_bytes: int) -> int:
        """Allocate; the value is freed with the last name that it is bound to."""
        self._alloc(size_bytes, kept=False)
        return len(self.size_bytes) - 1

    def keep(self, size_bytes: int) -> None:
        """Allocate permanently."""
        self._alloc(size_bytes, kept=True)

    def flash(self, size_bytes: int) -> None:
        """Allocate and free at once: a value that is read by the host, or used up by the next operator."""
        self.release([self.hold(self.new(size_bytes))])

    def hold(self, value: int) -> int:
        """Add a reference to a value."""
        self._references[value] += 1
        return value

    def release(self, values: Sequence[int]) -> None:
        """Drop a reference to each of a list: CPython empties lists and tuples from their end."""
        for value in reversed(values):
            self._references[value] -= 1
            if self._references[value] == 0:
                self.died[value] = self.events
                self.events += 1

    def allocations(self) -> Allocations:
        """Return what it holds so far as columns."""
        return Allocations(
            np.array(self.size_bytes, np.int64),
            np.array(self.born, np.int64),
            np.array(self.died, np.int64),
            np.array(self.kept, np.bool_),
            self.events,
        )

    @contextmanager
    def frame(self, *names: str) -> Iterator[Frame]:
        """Open the local variables of a function call, in the order of their first appearance in it."""
        frame = Frame(self, names)
        yield frame
        frame.leave()

    def _alloc(self, size_bytes: int, *, kept: bool) -> None:
        self.size_bytes.append(size_bytes)
        self.born.append(self.events)
        self.died.append(-1)
        self.kept.append(kept)
        self._references.append(0)
        self.events += 1


class Frame:
    """Local variables; binding one again frees what it was bound to, after the new value was made."""

    def __init__(self, tape: Tape, names: Sequence[str]) -> None:
        self._tape = tape
        self._bound: dict[str, list[int]] = {name: [] for name in names}

    def let(self, name: str, *values: int) -> list[int]:
        """Bind a variable to a value, or to a list of values."""
        for value in values:
            self._tape.hold(value)
        old, self._bound[name] = self._bound[name], list(values)
        self._tape.release(old)
        return list(values)

    def drop(self, name: str) -> None:
        """Do ``del name``."""
        self.let(name)

    def leave(self) -> None:
        """Return from the function."""
        for name in self._bound:
            self.drop(name)
