"""The largest changes in words: which part of the script made the peak grow or shrink."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

from xmem.difference.names import pattern
from xmem.difference.paths import SLACK
from xmem.difference.result import Cause, PathChange
from xmem.units import format_change

_MOST = 8
_EXPLAINED = 0.8  # share of all changes that the causes shown must make up, else they are told less finely
_MOST_LINES = 3

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
    SLACK: "slack of blocks that were not split",
}


def causes(paths: Sequence[PathChange]) -> tuple[Cause, ...]:
    """Group the changes as finely as a few groups still tell most of them; most change first."""
    changed = [path for path in paths if path.change_bytes]
    for level in _LEVELS:
        groups = _grouped(changed, level)
        shown = groups[:_MOST]
        told, all_of_them = (sum(abs(_change(group)) for group in some) for some in (shown, groups))
        if told >= _EXPLAINED * all_of_them or level is _LEVELS[-1]:
            return tuple(_cause(group) for group in shown if _change(group))
    return ()


def _grouped(paths: Sequence[PathChange], level: Callable[[PathChange], Hashable]) -> list[list[PathChange]]:
    groups: dict[Hashable, list[PathChange]] = defaultdict(list)
    for path in paths:
        groups[level(path)].append(path)
    return sorted(groups.values(), key=lambda group: -abs(_change(group)))


def _change(group: Sequence[PathChange]) -> int:
    return sum(path.change_bytes for path in group)


def _alike(path: PathChange) -> str | None:
    return None if path.module is None else pattern(path.module)


def _part(path: PathChange) -> str | None:
    """``GPT.blocks.*`` of all that is below one of a list of modules, else the first two components."""
    if path.module is None:
        return None
    parts = pattern(path.module).split(".")
    return ".".join(parts[: parts.index("*") + 1] if "*" in parts else parts[:2])


_LEVELS: tuple[Callable[[PathChange], Hashable], ...] = (
    lambda path: (path.category, _alike(path), path.source_line),
    lambda path: (path.category, _alike(path)),
    lambda path: (path.category, _part(path)),
    lambda path: path.category,
)


def _cause(group: Sequence[PathChange]) -> Cause:
    modules: dict[str, int] = defaultdict(int)
    for path in group:
        if path.module is not None:
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
    words = "".join(_words(cause, sorted(modules.values())))
    return Cause(**{**vars(cause), "text": words})


def _name_of_all(group: Sequence[PathChange]) -> str | None:
    """The one name that all modules of a group go by, None where there is none."""
    for name in (_alike, _part):
        names = {name(path) for path in group}
        if len(names) == 1:
            return names.pop()
    return None


def _words(cause: Cause, by_module: Sequence[int]) -> Iterator[str]:
    yield f"{format_change(cause.change_bytes)} {_NOUNS.get(cause.category, cause.category)}"
    if cause.module is not None:
        yield f" of {cause.module}"
    elif cause.modules > 1:
        yield f" of {cause.modules} modules"
    details = []
    if cause.module is not None and cause.modules > 1:
        least, most = format_change(by_module[0]), format_change(by_module[-1])
        each = f"{least} each" if by_module[0] == by_module[-1] else f"{least} to {most} each"
        details.append(f"{cause.modules} modules, {each}")
    details.append(_factor(cause))
    if any(details):
        yield f" ({', '.join(detail for detail in details if detail)})"
    if cause.source_lines:
        yield f" from {', '.join(cause.source_lines)}"


def _factor(cause: Cause) -> str:
    if cause.before_bytes == 0:
        return "new"
    if cause.after_bytes == 0:
        return "gone"
    return f"x{cause.after_bytes / cause.before_bytes:.3g}"
