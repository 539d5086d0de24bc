"""Two estimates or analyses side by side."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from xmem.difference.causes import causes
from xmem.difference.comparison import Difference, PathChange, Setting, SizeChange
from xmem.difference.instants import instants
from xmem.difference.matched_blocks import block_changes
from xmem.difference.names import align_lines, align_modules, unwrapped
from xmem.difference.paths import Common, ComparedRun, Path, aligned_paths
from xmem.estimation.analysis import Analysis
from xmem.estimation.estimate import SLACK, Estimate
from xmem.estimation.holders import NO_LINE, OUTSIDE_OF_MODULES, OUTSIDE_OF_OPERATORS
from xmem.text.units import format_bytes
from xmem.text.words import point

_SLACK_NAME = "(allocator slack)"


def difference(before: Estimate | Analysis, after: Estimate | Analysis) -> Difference:
    """Compare two runs: what changed, and which part of the script caused it.

    Args:
        before: The first run; with an analysis on both sides, blocks and instants are compared too.
        after: The second run.
    """
    old, new = ComparedRun.of(before), ComparedRun.of(after)
    common = Common(old, new)
    joint = bool(old.held) and bool(new.held)
    paths = aligned_paths(old, new, common) if joint else ()
    moved = _place(old, common, 0) != _place(new, common, 1)
    rows = (old.rows, new.rows)
    return Difference(
        settings=tuple(_settings(old.estimate, new.estimate)),
        sizes=_sizes(old.estimate, new.estimate),
        fits_before=old.estimate.fits,
        fits_after=new.estimate.fits,
        peak_before=old.estimate.peak,
        peak_after=new.estimate.peak,
        peak_moved=moved,
        **_tables(old.estimate, new.estimate, paths),
        paths=paths,
        causes=causes(paths or _by_category(old.estimate, new.estimate)),
        instants=instants(rows[0], rows[1], common) if moved and rows[0] and rows[1] else (),
        blocks=block_changes(rows[0], rows[1], common) if rows[0] and rows[1] else (),
        renamed=common.renamed(),
        notes=tuple(_notes(old, new, joint)),
    )


def _place(run: ComparedRun, common: Common, side: int) -> Hashable:
    """Return the place of a run's peak in names that both runs share; layers of a list count as equal."""
    peak = run.estimate.peak
    return common.key(Path("", peak.phase, None, peak.operator, peak.source_line), side)


def _sizes(before: Estimate, after: Estimate) -> tuple[SizeChange, ...]:
    both = before, after
    return (
        SizeChange("device_peak", *(run.device_peak_bytes for run in both)),
        SizeChange("context", *(run.context_bytes for run in both)),
        SizeChange("outside", *(run.outside_bytes for run in both)),
        SizeChange("peak_reserved", *(run.peak_reserved_bytes for run in both)),
        SizeChange("peak_allocated", *(run.peak_allocated_bytes for run in both)),
        SizeChange("peak_requested", *(run.peak_requested_bytes for run in both)),
        SizeChange("beyond_allocated", *(run.peak_reserved_bytes - run.peak_allocated_bytes for run in both)),
    )


def _settings(before: Estimate, after: Estimate) -> Iterator[Setting]:
    """Yield the settings that differ, the most important first."""
    asked: dict[str, Callable[[Estimate], str | None]] = {
        "way": _way,
        "gpu": lambda run: run.target.gpu,
        "capacity": lambda run: _size_text(run.target.capacity_bytes),
        "torch": lambda run: run.target.torch_version,
        "alloc_conf": lambda run: run.target.alloc_conf or None,
        "context": lambda run: _size_text(run.context_bytes),
        "what_if": lambda run: ", ".join(run.what_if) or None,
        "at": lambda run: None if run.scaling is None else point(run.scaling.at),
        "policies_off": lambda run: ", ".join(p.name for p in run.policies if not p.applied) or None,
        "command": lambda run: shlex.join(run.trace.command) or None,
        "iterations": lambda run: str(run.trace.iterations),
    }
    for name, of in asked.items():
        if of(before) != of(after) and not (name == "torch" and _same_release(before, after)):
            yield Setting(name, of(before), of(after))


def _same_release(before: Estimate, after: Estimate) -> bool:
    """Return whether versions agree as far as the shorter one goes: ``2.13`` and ``2.13.0``."""
    versions = (run.target.torch_version.split(".") for run in (before, after))
    return all(one == other for one, other in zip(*versions, strict=False))


def _way(run: Estimate) -> str:
    """Return how the run was observed."""
    if run.scaling is not None:
        return "fitted model"
    if run.measured is not None:
        return "phantom GPU"
    return "GPU" if not any(policy.name == "drop_host_memory" for policy in run.policies) else "CPU"


def _size_text(size_bytes: int) -> str | None:
    return format_bytes(size_bytes) if size_bytes > 0 else None


def _tables(
    before: Estimate, after: Estimate, paths: Sequence[PathChange]
) -> dict[str, tuple[SizeChange, ...]]:
    """Return tables of the bytes at the peak, each by one name."""
    if paths:
        return {
            "category": _summed(paths, lambda path: path.category),
            "module": _summed(paths, lambda path: path.module or OUTSIDE_OF_MODULES, _SLACK_NAME),
            "operator": _summed(paths, lambda path: path.operator or OUTSIDE_OF_OPERATORS, _SLACK_NAME),
            "source_line": _summed(paths, lambda path: path.source_line or NO_LINE, _SLACK_NAME),
            "phase": _summed(paths, lambda path: path.phase, _SLACK_NAME),
        }
    old, new = before.breakdown, after.breakdown
    modules = [_by_name(run.module, unwrapped) for run in (old, new)]
    same_modules = align_modules(*(dict.fromkeys(side, frozenset()) for side in modules))
    same_lines = align_lines(*(dict.fromkeys(side.source_line, frozenset()) for side in (old, new)))
    return {
        "category": _merged(old.category, new.category),
        "module": _merged(_by_name(modules[0], lambda name: same_modules.get(name, name)), modules[1]),
        "operator": _merged(old.operator, new.operator),
        "source_line": _merged(
            _by_name(old.source_line, lambda name: same_lines.get(name, name)), new.source_line
        ),
        "phase": (),
    }


def _by_category(before: Estimate, after: Estimate) -> tuple[PathChange, ...]:
    return tuple(
        PathChange(size.name, None, None, None, "other", size.before_bytes, size.after_bytes, 0, 0)
        for size in _merged(before.breakdown.category, after.breakdown.category)
    )


def _summed(
    paths: Iterable[PathChange], name_of: Callable[[PathChange], str], slack: str | None = None
) -> tuple[SizeChange, ...]:
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for path in paths:
        name = slack if slack is not None and path.category == SLACK else name_of(path)
        before[name] = before.get(name, 0) + path.before_bytes
        after[name] = after.get(name, 0) + path.after_bytes
    return _merged(before, after)


def _merged(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[SizeChange, ...]:
    """Merge sizes by name, most change first, then the largest; names without bytes are left out."""
    names = dict.fromkeys([*after, *before])
    changes = [SizeChange(name, before.get(name, 0), after.get(name, 0)) for name in names]
    present = [change for change in changes if change.before_bytes or change.after_bytes]
    return tuple(sorted(present, key=lambda change: (-abs(change.change_bytes), -change.after_bytes)))


def _by_name(sizes: Mapping[str, int], rename: Callable[[str], str]) -> dict[str, int]:
    renamed: dict[str, int] = {}
    for name, size in sizes.items():
        renamed[rename(name)] = renamed.get(rename(name), 0) + size
    return renamed


def _notes(before: ComparedRun, after: ComparedRun, joint: bool) -> Iterator[str]:
    ways = _way(before.estimate), _way(after.estimate)
    if ways[0] != ways[1]:
        yield (
            f"the first run was recorded on a {ways[0]} and the second on a {ways[1]}: "
            "part of any change may come from that alone"
        )
    if not joint:
        yield (
            "an estimate of an earlier version does not say which category, module and line go together: "
            "estimate its trace again to get better causes"
        )
    elif before.analysis is None or after.analysis is None:
        yield "blocks and instants are compared only if both runs are traces"
    if before.estimate.trace.iterations != after.estimate.trace.iterations:
        yield (
            "the runs have different numbers of iterations: the shorter one may peak lower for that reason "
            "alone"
        )
