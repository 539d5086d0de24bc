"""Memory that a run holds at its peak, by attribution path; and the paths of two runs side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xmem.difference.comparison import PathChange, Renamed
from xmem.difference.names import Activity, align_lines, align_modules, unwrapped
from xmem.estimation.analysis import Analysis
from xmem.estimation.estimate import SLACK, Estimate
from xmem.estimation.evidence import taken_bytes
from xmem.records import dataclass
from xmem.trace.attribution import Category, Phase


class Path(NamedTuple):
    """Holder of a block; modules without the components of wrappers."""

    category: str
    phase: str
    module: str | None
    operator: str | None
    source_line: str | None


@dataclass(frozen=True)
class ComparedRun:
    """One side of a comparison: an estimate and, if the trace was given, the analysis behind it."""

    estimate: Estimate
    analysis: Analysis | None

    @classmethod
    def of(cls, source: Estimate | Analysis) -> ComparedRun:
        """Make a side of an estimate or an analysis."""
        return cls(source, None) if isinstance(source, Estimate) else cls(source.estimate, source)

    @cached_property
    def rows(self) -> Rows | None:
        """The blocks of an analysis by path."""
        return None if self.analysis is None else Rows(self.analysis)

    @cached_property
    def held(self) -> Mapping[Path, tuple[int, int]]:
        """Bytes and blocks of each path at the peak, without slack; empty where the estimate lacks them."""
        if self.rows is not None:
            return self.rows.held()
        held: dict[Path, tuple[int, int]] = {}
        for row in self.estimate.breakdown.paths:
            module = None if row.module is None else unwrapped(row.module)
            path = Path(row.category, row.phase, module, row.operator, row.source_line)
            size, blocks = held.get(path, (0, 0))
            held[path] = size + row.bytes, blocks + row.blocks
        return held


class Rows:
    """The blocks of an analysed run, each with its path.

    Attributes:
        paths: Every path of the run.
        path: int64, index into ``paths``, one entry per row of the workload.
        taken: int64 bytes of each row, rounded as the allocator does; without slack.
        alive: Rows alive at the peak of allocated bytes.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.holders = holders = analysis.holders
        key = holders.path_key(with_persistence=False)
        _, first, path = np.unique(key, return_index=True, return_inverse=True)
        self.path: NDArray[np.int64] = path.reshape(-1).astype(np.int64)
        modules = [unwrapped(module) for module in holders.modules]
        self.paths = [
            Path(
                Category(int(holders.category[row])).label,
                Phase(int(holders.phase[row])).label,
                None if holders.module[row] < 0 else modules[holders.module[row]],
                holders.operator_name(row),
                holders.line_name(row),
            )
            for row in first.tolist()
        ]
        self.taken = taken_bytes(analysis.stages.workload, analysis.stages.requests, analysis.replay)
        self.alive = holders.alive_at(analysis.replay.peak_allocated.request)

    def held(self) -> dict[Path, tuple[int, int]]:
        """Return the bytes and blocks of each path at the peak."""
        bytes_of = np.zeros(len(self.paths), np.int64)
        np.add.at(bytes_of, self.path[self.alive], self.taken[self.alive])
        blocks_of = np.bincount(self.path[self.alive], minlength=len(self.paths))
        held: dict[Path, tuple[int, int]] = {}
        for index in np.flatnonzero(
            blocks_of
        ).tolist():  # modules that differ by a wrapper alone are one path
            path = self.paths[index]
            size, blocks = held.get(path, (0, 0))
            held[path] = size + int(bytes_of[index]), blocks + int(blocks_of[index])
        return held


class Common:
    """Names that stand for the same thing in both runs, whatever each calls it."""

    def __init__(self, before: ComparedRun, after: ComparedRun) -> None:
        whole = bool(before.rows and after.rows)
        noted = all(_line_notes(side) for side in (before, after))
        sides = [_activities(side, whole=whole, noted=noted) for side in (before, after)]
        modules = align_modules(sides[0].module, sides[1].module)
        lines = align_lines(sides[0].line, sides[1].line)
        self._modules = modules, {new: old for old, new in modules.items()}
        self._lines = lines, {new: old for old, new in lines.items()}

    def key(self, path: Path, side: int) -> Hashable:
        """Return a key that is the same for counterpart paths of side 0 and side 1."""
        return (
            path.category,
            path.phase,
            path.operator,
            _pair(path.module, self._modules, side),
            _pair(path.source_line, self._lines, side),
        )

    def module(self, name: str | None, side: int) -> str | None:
        """Return the name of a module in the second run, else in the first."""
        return self._modules[0].get(name, name) if side == 0 and name is not None else name

    def source_line(self, name: str | None, side: int) -> str | None:
        """Return the name of a line in the second run, else in the first."""
        return self._lines[0].get(name, name) if side == 0 and name is not None else name

    def renamed(self) -> tuple[Renamed, ...]:
        """Return the names that differ."""
        return (
            *(Renamed("module", old, new) for old, new in self._modules[0].items() if old != new),
            *(Renamed("source_line", old, new) for old, new in self._lines[0].items() if old != new),
        )


def aligned_paths(before: ComparedRun, after: ComparedRun, common: Common) -> tuple[PathChange, ...]:
    """Return the paths of both runs side by side, most change first; with the slack they sum to the peaks."""
    sides = {common.key(path, side): path for side, run in ((0, before), (1, after)) for path in run.held}
    held = [
        {common.key(path, side): what for path, what in run.held.items()}
        for side, run in ((0, before), (1, after))
    ]
    rows = [
        PathChange(
            category=path.category,
            module=common.module(path.module, 0 if key not in held[1] else 1),
            operator=path.operator,
            source_line=common.source_line(path.source_line, 0 if key not in held[1] else 1),
            phase=path.phase,
            before_bytes=held[0].get(key, (0, 0))[0],
            after_bytes=held[1].get(key, (0, 0))[0],
            before_blocks=held[0].get(key, (0, 0))[1],
            after_blocks=held[1].get(key, (0, 0))[1],
        )
        for key, path in sides.items()
    ]
    slack = _slack_bytes(before), _slack_bytes(after)
    if any(slack):
        rows.append(PathChange(SLACK, None, None, None, Phase.OTHER.label, *slack, 0, 0))
    return tuple(sorted(rows, key=lambda row: (-abs(row.change_bytes), -row.after_bytes)))


def _slack_bytes(run: ComparedRun) -> int:
    return run.estimate.peak_allocated_bytes - sum(size for size, _ in run.held.values())


def _pair(name: str | None, names: tuple[Mapping[str, str], Mapping[str, str]], side: int) -> Hashable:
    if name is None:
        return None
    other = names[side].get(name)
    return (name, other) if side == 0 else (other, name)


@dataclass(frozen=True)
class _Activities:
    module: Activity
    line: Activity


def _line_notes(run: ComparedRun) -> Mapping[str, Mapping[str, str]]:
    return {} if run.analysis is None else run.analysis.stages.trace.notes.lines


def _activities(run: ComparedRun, *, whole: bool, noted: bool) -> _Activities:
    """Return what happens in each module and line: in the whole run, or for the blocks held at its peak.

    Args:
        run: The run.
        whole: Whether to use the whole run.
        noted: Whether both runs record the text of their lines: equal text makes lines more alike.
    """
    paths: Iterable[Path] = run.rows.paths if whole and run.rows is not None else run.held
    modules: dict[str, set[Hashable]] = defaultdict(set)
    lines: dict[str, set[Hashable]] = defaultdict(set)
    for path in paths:
        happens = (path.operator, path.phase)
        if path.module is not None:
            modules[path.module].add(happens)
        if path.source_line is not None:
            below_root = None if path.module is None else path.module.partition(".")[2]
            lines[path.source_line].add((*happens, below_root))
    if noted:
        notes = _line_notes(run)
        for name, happens_there in lines.items():
            happens_there.update(notes.get(name, {}).items())
    return _Activities(modules, lines)
