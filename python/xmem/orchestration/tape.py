"""The allocations and frees of a piece of Python code, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain


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

    @classmethod
    def joined(cls, tapes: Sequence[Tape]) -> Tape:
        """Return tapes that have ended, one after the other."""
        begins = [0, *accumulate(tape.events for tape in tapes)]
        joined = cls()
        joined.size_bytes = list(chain.from_iterable(tape.size_bytes for tape in tapes))
        joined.born = [
            begin + event for begin, tape in zip(begins, tapes, strict=False) for event in tape.born
        ]
        joined.died = [
            event if event < 0 else begin + event
            for begin, tape in zip(begins, tapes, strict=False)
            for event in tape.died
        ]
        joined.kept = list(chain.from_iterable(tape.kept for tape in tapes))
        joined.events = begins[-1]
        joined._references = list(chain.from_iterable(tape._references for tape in tapes))
        return joined

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
