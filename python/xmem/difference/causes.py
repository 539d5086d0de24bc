"""The largest changes in words: the parts of the script that made the peak grow or shrink."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from xmem.difference.comparison import Cause, PathChange
from xmem.difference.names import pattern
from xmem.estimation.estimate import SLACK
from xmem.text.units import format_change

_MOST = 8
_EXPLAINED = (
    0.8  # share of all changes that the causes shown must make up, else they are grouped more coarsely
)
_TOO_LITTLE = 0.001  # share of all changes below which a cause is not worth a line
_MOST_LINES = 3
_UNIFORM = 0.95  # share of a category's bytes that must have changed alike for it to be one cause
_SAME_FACTOR = 0.02

_NOUNS = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "input": "inputs",
    "activation": "activations",
    "workspace": "workspaces",
    "temporary": "temporaries",
    "unknown": "memory of unknown use",
    "before_trace": "memory from before the trace began",
    SLACK: "slack of blocks that were not split",
}


def causes(paths: Sequence[PathChange]) -> tuple[Cause, ...]:
    """Group the changes such that a few groups explain most of them; most change first.

    A category that changed by one factor throughout is one cause. The rest is grouped by module and line, or
    more coarsely where that would be too many.
    """
    paths = _of_any_operator(paths)
    uniform = [group for group in _grouped(paths, lambda path: path.category) if _is_uniform(group)]
    whole = {group[0].category for group in uniform}
    changed = [path for path in paths if path.change_bytes and path.category not in whole]
    for level in _LEVELS:
        groups = sorted([*uniform, *_grouped(changed, level)], key=lambda group: -abs(_change(group)))
        shown = groups[:_MOST]
        told, all_of_them = (sum(abs(_change(group)) for group in some) for some in (shown, groups))
        if told >= _EXPLAINED * all_of_them or level is _LEVELS[-1]:
            return tuple(_cause(group) for group in shown if abs(_change(group)) > _TOO_LITTLE * all_of_them)
    return ()


def factor(before_bytes: int, after_bytes: int) -> str:
    """Return ``x2.00``, ``new`` or ``gone``; empty where a factor is not informative."""
    if before_bytes <= 0 or after_bytes <= 0:
        return "new" if after_bytes > 0 else "gone" if before_bytes > 0 else ""
    times = after_bytes / before_bytes
    return f"x{times:.2f}" if 0.01 <= times < 1000 else ""


def _grouped(paths: Sequence[PathChange], level: Callable[[PathChange], Hashable]) -> list[list[PathChange]]:
    groups: dict[Hashable, list[PathChange]] = defaultdict(list)
    for path in paths:
        groups[level(path)].append(path)
    return list(groups.values())


def _of_any_operator(paths: Sequence[PathChange]) -> list[PathChange]:
    """Merge the paths of one module and line under the operator that changed most.

    With autocast or fusion another operator makes the same bytes.
    """
    groups = _grouped(paths, lambda path: (path.category, path.module, path.source_line))
    return [
        replace(
            max(group, key=lambda path: abs(path.change_bytes)),
            before_bytes=sum(path.before_bytes for path in group),
            after_bytes=sum(path.after_bytes for path in group),
            before_blocks=sum(path.before_blocks for path in group),
            after_blocks=sum(path.after_blocks for path in group),
        )
        for group in groups
    ]


def _change(group: Iterable[PathChange]) -> int:
    return sum(path.change_bytes for path in group)


def _is_uniform(group: Sequence[PathChange]) -> bool:
    """Return whether almost all of a category changed by the same factor, in several parts."""
    before, after = sum(path.before_bytes for path in group), sum(path.after_bytes for path in group)
    if before == after or len({_alike(path) for path in group}) <= 2:
        return False
    alike = sum(
        max(path.before_bytes, path.after_bytes)
        for path in group
        if abs(path.after_bytes * before - after * path.before_bytes)
        <= _SAME_FACTOR * max(path.before_bytes * after, path.after_bytes * before)
    )
    return alike >= _UNIFORM * sum(max(path.before_bytes, path.after_bytes) for path in group)


def _alike(path: PathChange) -> str | None:
    return None if path.module is None else pattern(path.module)


def _part(path: PathChange) -> str | None:
    """Return ``GPT.blocks.*`` for everything below a list of modules, else the first two components."""
    if path.module is None:
        return None
    parts = pattern(path.module).split(".")
    return ".".join(parts[: parts.index("*") + 1] if "*" in parts else parts[:2])


def _finest(path: PathChange) -> Hashable:
    if path.before_bytes and path.after_bytes:
        return path.category, _alike(path), path.source_line
    return (
        path.category,
        _part(path),
        path.before_bytes == 0,
    )  # memory that appeared or disappeared did so as a whole


_LEVELS: tuple[Callable[[PathChange], Hashable], ...] = (
    _finest,
    lambda path: (path.category, _alike(path)),
    lambda path: (path.category, _part(path)),
    lambda path: path.category,
)


def _cause(group: Sequence[PathChange]) -> Cause:
    modules: dict[str, int] = defaultdict(int)
    for path in group:
        if path.module is not None and path.change_bytes:
            modules[path.module] += path.change_bytes
    lines = tuple(sorted({path.source_line for path in group if path.source_line is not None}))
    cause = Cause(
        category=group[0].category,
        module=_name_of_all(group),
        modules=len(modules),
        source_lines=lines if len(lines) <= _MOST_LINES else (),
        before_bytes=sum(path.before_bytes for path in group),
        after_bytes=sum(path.after_bytes for path in group),
        text="",
    )
    words = "".join(_words(cause, sorted(modules.values()), _most_of(group), _operator(group)))
    return replace(cause, text=words)


def _name_of_all(group: Sequence[PathChange]) -> str | None:
    """Return the name that all modules of a group share, None where there is none."""
    for name in (_alike, _part):
        names = {name(path) for path in group}
        if len(names) == 1:
            return names.pop()
    return None


def _most_of(group: Sequence[PathChange]) -> str | None:
    """Return the module pattern that changed most."""
    sums: dict[str, int] = defaultdict(int)
    for path in group:
        if path.module is not None:
            sums[pattern(path.module)] += abs(path.change_bytes)
    return max(sums, key=lambda name: sums[name], default=None)


def _operator(group: Sequence[PathChange]) -> str | None:
    """Return the operator that changed most, for a group of which nothing else is known."""
    if any(path.module is not None or path.source_line is not None for path in group):
        return None
    return max(group, key=lambda path: abs(path.change_bytes)).operator


def _words(
    cause: Cause, by_module: Sequence[int], most_of: str | None, operator: str | None
) -> Iterator[str]:
    yield f"{format_change(cause.change_bytes)} {_NOUNS.get(cause.category, cause.category)}"
    if cause.module is not None:
        yield f" of {cause.module}"
    elif cause.modules > 1:
        yield f" of {cause.modules:,} modules, most of all {most_of}"
    elif operator is not None:
        yield f", most of all by {operator}"
    details = []
    if cause.module is not None and cause.modules > 1:
        least, most = format_change(by_module[0]), format_change(by_module[-1])
        each = f"{least} each" if least == most else f"{least} to {most} each"
        details.append(f"{cause.modules:,} modules, {each}")
    details.append(factor(cause.before_bytes, cause.after_bytes))
    if any(details):
        yield f" ({', '.join(detail for detail in details if detail)})"
    if cause.source_lines:
        yield f" from {', '.join(cause.source_lines)}"
