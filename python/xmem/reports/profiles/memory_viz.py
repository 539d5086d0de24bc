"""The predicted run as a snapshot of ``torch.cuda.memory``, with the stack of every block.

A stack reads from the inside out: the operators, the source lines of packages and of the user, the modules,
the phase and the category. Viewers show a frame as ``filename:line:name``; anything that is not a function of
a file has the word for its kind as the file's name, and line 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xmem.estimation.holders import Holders
from xmem.run.operators import OperatorIndex
from xmem.simulation.replay import Replay, replay
from xmem.snapshot.memory_viz import Frame, Origins, write_snapshot
from xmem.text.source_lines import file_and_number
from xmem.trace.attribution import Category, Phase

if TYPE_CHECKING:
    from xmem.estimation.analysis import Analysis

# A GPU that never runs out of memory, and whose addresses a viewer in JavaScript still reads exactly.
_ROOMY_BYTES = 1 << 40
_FUNCTION_NOT_KNOWN = "?"


def write_memory_viz(analysis: Analysis, file: IO[bytes]) -> tuple[int, int]:
    """Write the run; on a GPU it ends where it would run out of memory.

    Args:
        analysis: The estimate and the data behind it.
        file: File to write to.

    Returns:
        The number of events, and the peak of reserved memory among them in bytes.
    """
    replayed = _replay(analysis)
    conf = analysis.estimate.target.alloc_conf
    events = write_snapshot(file, analysis.stages.requests, replayed, origins_of(analysis), conf)
    return events, replayed.peak_reserved.bytes


def _replay(analysis: Analysis) -> Replay:
    device = analysis.device
    return replay(
        analysis.stages.requests,
        options=analysis.stages.settings.options,
        capacity_bytes=_ROOMY_BYTES if device is None else device.total_memory_bytes,
        other_bytes=0 if device is None else analysis.verdict.taken_bytes,
    )


def origins_of(analysis: Analysis) -> Origins:
    """Return the stack and the category of each block; blocks of one origin share a stack."""
    stages = analysis.stages
    users, packages = (analysis.holders_with(show_packages=shown) for shown in (False, True))
    operators = _OperatorStacks(OperatorIndex(stages.trace), stages.workload.operator)
    parts: list[NDArray[Any]] = [
        operators.stack,
        packages.line,
        users.line,
        users.module,
        users.phase,
        users.category,
    ]
    first, which = _distinct(parts)
    frames = _Frames(operators, packages, users, stages.trace.notes.lines)
    stacks = [
        (
            *frames.of_operators(operator),
            *frames.of_lines(package, user),
            *frames.of_module(module),
            frames.number(Phase(phase).label, "phase"),
            frames.number(Category(category).label, "category"),
        )
        for operator, package, user, module, phase, category in zip(
            *(part[first].tolist() for part in parts), strict=True
        )
    ]
    return Origins(
        frames=list(frames.numbers),
        stacks=stacks,
        category=[Category(value).label for value in users.category[first].tolist()],
        stack=which,
    )


def _distinct(columns: Sequence[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """Return one row per distinct combination of values, and for every row the index of its combination."""
    order = np.lexsort(columns)  # np.unique of rows takes five times as long
    begins = np.ones(len(order), np.bool_)
    begins[1:] = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    which = np.empty(len(order), np.int32)
    which[order] = np.cumsum(begins) - 1
    return order[begins], which


class _Frames:
    """Numbers the frames that describe blocks.

    Attributes:
        numbers: Number of each frame, in ascending order.
    """

    def __init__(
        self, operators: _OperatorStacks, packages: Holders, users: Holders, notes: Mapping[str, Any]
    ) -> None:
        self.numbers: dict[Frame, int] = {}
        self._operators = operators
        self._packages = packages
        self._users = users
        self._notes = notes
        # Few parts make many stacks.
        self.of_operators = cache(self._of_operators)
        self.of_lines = cache(self._of_lines)
        self.of_module = cache(self._of_module)

    def number(self, name: str, filename: str, line: int = 0) -> int:
        """Return the number of a frame."""
        return self.numbers.setdefault(Frame(name, filename, line), len(self.numbers))

    def _of_operators(self, stack: int) -> list[int]:
        return [self.number(name, "operator") for name in self._operators.names(stack)]

    def _of_lines(self, package: int, user: int) -> list[int]:
        """Return the frames of lines, the innermost first; a line of the user's own is both."""
        lines = [self._packages.lines[package]] if package >= 0 else []
        if user >= 0 and self._users.lines[user] not in lines:
            lines.append(self._users.lines[user])
        functions = [self._notes.get(line, {}).get("function") or _FUNCTION_NOT_KNOWN for line in lines]
        return [
            self.number(name, *file_and_number(line)) for name, line in zip(functions, lines, strict=True)
        ]

    def _of_module(self, module: int) -> list[int]:
        """Return the frames of the module and those around it."""
        if module < 0:
            return []
        parts = self._users.modules[module].split(".")
        return [self.number(".".join(parts[:count]), "module") for count in range(len(parts), 0, -1)]


class _OperatorStacks:
    """The operators around given spans, by name: thousands of calls have a few hundred stacks."""

    def __init__(self, operators: OperatorIndex, rows: NDArray[np.int32]) -> None:
        """Number the stacks of rows of the EventTable, -1 = no operator.

        Attributes:
            stack: int32 per row, the number of its stack, -1 = none.
        """
        self._operators = operators
        self._name: list[int] = []
        self._outer: list[int] = []
        number = np.full(len(operators.events), -1, np.int32)
        for level in reversed(
            self._levels(rows)
        ):  # the outermost first: a stack extends a shorter stack by one name
            outer = operators.parent[level]
            outer_stack = np.where(outer >= 0, number[outer], -1)
            name = operators.events.name[level]
            keys = (outer_stack.astype(np.int64) + 1) * len(operators.trace.names) + name
            _, first, which = np.unique(keys, return_index=True, return_inverse=True)
            number[level] = len(self._name) + which
            self._name += name[first].tolist()
            self._outer += outer_stack[first].tolist()
        self.stack: NDArray[np.int32] = np.where(rows >= 0, number[rows], -1).astype(np.int32)

    def names(self, stack: int) -> Iterator[str]:
        """Return the operators of a stack, innermost first."""
        while stack >= 0:
            yield self._operators.trace.names[self._name[stack]]
            stack = self._outer[stack]

    def _levels(self, rows: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """Return the rows and all operators around them by depth, the deepest first."""
        around = np.zeros(len(self._operators.events), np.bool_)
        inner = np.unique(rows[rows >= 0])
        while len(inner):
            around[inner] = True
            inner = np.unique(self._operators.parent[inner])
            inner = inner[inner >= 0]
            inner = inner[~around[inner]]
        found = np.flatnonzero(around).astype(np.int32)
        depth = np.zeros(len(found), np.int32)
        outer = self._operators.parent[found]
        while (inside := outer >= 0).any():
            depth += inside
            outer = np.where(inside, self._operators.parent[outer], -1)
        order = np.argsort(-depth, kind="stable")
        deepest_first = found[order]
        return np.split(deepest_first, np.flatnonzero(np.diff(depth[order])) + 1) if len(found) else []
