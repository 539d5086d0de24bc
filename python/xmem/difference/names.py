"""Alignment of the modules and source lines of one run with those of another.

Where names alone are not enough, both are matched by what happens there, the operators and phases: lines that
moved within their file, modules below a wrapper or with another name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from pathlib import PurePath

from xmem.records import dataclass
from xmem.text.source_lines import file_and_number

_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_ALIKE = 0.5  # share in common from which a module or a file counts as renamed, not replaced
_SAME_NUMBER = 0.05  # what an unchanged line number adds to the likeness of two lines

Activity = Mapping[str, Set[Hashable]]
"""What happens in each module or line, by name."""


def unwrapped(module: str) -> str:
    """Return the path of a module without the components that DataParallel, torch.compile and FSDP add."""
    root, *rest = module.split(".")
    return ".".join([root, *(part for part in rest if part not in _WRAPPERS)])


def pattern(module: str) -> str:
    """Return ``GPT.blocks.*.attn`` for ``GPT.blocks.3.attn``."""
    return _NUMBER.sub("*", module)


def by_pattern(modules: Iterable[str]) -> dict[str, list[str]]:
    """Group modules whose paths differ by numbers under their pattern; a single one under its path."""
    groups: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        groups[pattern(module)].append(module)
    return {name if len(group) > 1 else group[0]: group for name, group in groups.items()}


def align_modules(before: Activity, after: Activity) -> dict[str, str]:
    """Map modules of the first run to their counterparts in the second, level by level from the root.

    Children of the same name are counterparts; of the rest, those in which much the same happens.
    """
    return _both_ways(before, after, lambda left, right: dict(_paired(_tree(left), _tree(right))))


def align_lines(before: Activity, after: Activity) -> dict[str, str]:
    """Map lines ``PATH:LINE`` of the first run to their counterparts in the second, in order within files."""
    return _both_ways(before, after, _align_lines)


def _both_ways(
    before: Activity, after: Activity, align: Callable[[Activity, Activity], dict[str, str]]
) -> dict[str, str]:
    """Align the runs such that the pairs do not depend on the order of the runs."""
    if sorted(before) <= sorted(after):
        return align(before, after)
    return {left: right for right, left in align(after, before).items()}


def _align_lines(before: Activity, after: Activity) -> dict[str, str]:
    left, right = _by_file(before), _by_file(after)
    pairs: dict[str, str] = {}
    for one, other in _paired_files(left, right):
        lines = sorted(left[one]), sorted(right[other])

        def likeness(i: int, j: int, one: str = one, other: str = other) -> float:
            same_number = _SAME_NUMBER if i == j else 0.0
            return _likeness(before[f"{one}:{i}"], after[f"{other}:{j}"]) + same_number

        found = list(_in_order(*lines, likeness))
        same_name = PurePath(one).name == PurePath(other).name
        if same_name or len(found) >= _ALIKE * min(len(lines[0]), len(lines[1])):
            pairs |= {f"{one}:{i}": f"{other}:{j}" for i, j in found}
    return pairs


def _by_file(lines: Iterable[str]) -> dict[str, list[int]]:
    files: dict[str, list[int]] = defaultdict(list)
    for line in lines:
        path, number = file_and_number(line)
        if line == f"{path}:{number}":
            files[path].append(number)
    return files


def _paired_files(left: Collection[str], right: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield files of the same path, then the only ones of a name, then the only ones that are left."""
    yield from ((path, path) for path in left if path in right)
    rest_left = [path for path in left if path not in right]
    rest_right = [path for path in right if path not in left]
    for path in list(rest_left):
        name = PurePath(path).name
        named_left = [one for one in rest_left if PurePath(one).name == name]
        named_right = [one for one in rest_right if PurePath(one).name == name]
        if len(named_left) == len(named_right) == 1:
            rest_left.remove(path)
            rest_right.remove(named_right[0])
            yield path, named_right[0]
    if len(rest_left) == len(rest_right) == 1:
        yield rest_left[0], rest_right[0]


def _in_order(
    left: Sequence[int], right: Sequence[int], likeness: Callable[[int, int], float]
) -> Iterator[tuple[int, int]]:
    """Yield the pairs with the highest total likeness that keep the order of both sides."""
    best = [[0.0] * (len(right) + 1) for _ in range(len(left) + 1)]
    like = [[likeness(i, j) for j in right] for i in left]
    for row in reversed(range(len(left))):
        for column in reversed(range(len(right))):
            best[row][column] = max(
                best[row + 1][column],
                best[row][column + 1],
                best[row + 1][column + 1] + like[row][column],
            )
    row = column = 0
    while row < len(left) and column < len(right):
        paired = best[row + 1][column + 1] + like[row][column]
        if like[row][column] > 0 and best[row][column] == paired:
            yield left[row], right[column]
            row, column = row + 1, column + 1
        elif best[row][column] == best[row + 1][column]:
            row += 1
        else:
            column += 1


def _likeness(left: Set[Hashable], right: Set[Hashable]) -> float:
    return len(left & right) / len(left | right) if left or right else 0.0


@dataclass
class _Module:
    path: str
    own: Set[Hashable] = frozenset()
    children: dict[str, _Module] = field(default_factory=dict)

    def activity(self, prefix: str = "") -> Iterator[Hashable]:
        """Yield what happens in the module and below it, and where."""
        yield from ((prefix, what) for what in self.own)
        for name, child in self.children.items():
            yield from child.activity(f"{prefix}.{name}")


def _tree(modules: Activity) -> _Module:
    root = _Module("")
    for path, own in modules.items():
        node = root
        for part in path.split("."):
            below = f"{node.path}.{part}" if node.path else part
            node = node.children.setdefault(part, _Module(below))
        node.own = own
    return root


def _paired(left: _Module, right: _Module) -> Iterator[tuple[str, str]]:
    if left.path:
        yield left.path, right.path
    for name, child in left.children.items():
        if name in right.children:
            yield from _paired(child, right.children[name])
    rest_left = {name: child for name, child in left.children.items() if name not in right.children}
    rest_right = {name: child for name, child in right.children.items() if name not in left.children}
    activity = {
        id(child): frozenset(child.activity()) for child in [*rest_left.values(), *rest_right.values()]
    }
    alike = sorted(
        (-_likeness(activity[id(one)], activity[id(other)]), i, j)
        for i, one in enumerate(rest_left.values())
        for j, other in enumerate(rest_right.values())
    )
    names = list(rest_left), list(rest_right)
    for likeness, i, j in alike:
        one, other = names[0][i], names[1][j]
        if -likeness >= _ALIKE and one in rest_left and other in rest_right:
            yield from _paired(rest_left.pop(one), rest_right.pop(other))
