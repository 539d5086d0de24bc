"""The layouts of a sweep: how a job of a fixed world is divided. Each is captured by itself.

A layout changes what the ranks of a job hold and say to each other, so nothing can be fitted across layouts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, TypeAlias

from xmem.scaling.dimensions import substitute
from xmem.sweep.captures import CommandJob

Layout: TypeAlias = Mapping[str, int | str]
"""Values of the layout's keys, such as ``{"tensor": 8, "pipeline": 16, "data": 8, "checkpoint": "full"}``."""

SPLITS = "splits"
REST = "data"
MOST_LAYOUTS = 10_000

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def layouts_of(
    table: Mapping[str, object], world_size: int | None, refuse: Callable[[str, str], None]
) -> tuple[Layout, ...]:
    """Return the layouts of the table ``[layouts]``; one empty layout where there is no table.

    Args:
        table: Values by key, of which every combination is a layout; ``splits`` names the keys that divide
            the world between them. What remains of the world is ``data``; layouts that leave a fraction do
            not exist.
        world_size: Number of ranks of the job.
        refuse: Takes what is wrong, and what to do; does not return.
    """
    if not table:
        return ({},)
    splits = table.get(SPLITS, [])
    axes = {key: _values(key, given, refuse) for key, given in table.items() if key != SPLITS}
    if not isinstance(splits, list) or not all(split in axes for split in splits):
        refuse(f"[layouts] {SPLITS} = {splits!r} is invalid", "name keys of this table that divide the world")
    assert isinstance(splits, list)
    if splits and world_size is None:
        refuse(f"[layouts] {SPLITS} needs the size of the world", "set world_size in [job]")
    if splits and REST in axes:
        refuse(f"[layouts] {REST} is what {SPLITS} leave of the world", f"leave {REST} out")
    for split in splits:
        if not all(isinstance(value, int) for value in axes[split]):
            refuse(f"[layouts] {split} = {axes[split]!r} does not divide the world", "use numbers above 0")
    if prod(map(len, axes.values())) > MOST_LAYOUTS:
        refuse("[layouts] has too many combinations", f"use at most {MOST_LAYOUTS:,}")
    every = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    if not splits:
        return tuple(every)
    assert world_size is not None
    found = tuple(whole for layout in every if (whole := _divided(layout, splits, world_size)) is not None)
    if not found:
        refuse(
            f"no layout divides {world_size} ranks",
            f"choose values of {', '.join(splits)} whose product does",
        )
    return found


def job_at(job: CommandJob, layout: Layout) -> CommandJob:
    """Return the job in a layout.

    Raises:
        ConfigError: The command does not use a key of it.
    """
    if not layout:
        return job
    used = {key: value for key, value in layout.items() if key != REST or _uses(job.command, REST)}
    return replace(job, command=tuple(substitute(job.command, used)))


def _uses(command: Sequence[str], key: str) -> bool:
    return any(f"{{{key}}}" in argument for argument in command)


def _divided(layout: dict[str, int | str], splits: Sequence[str], world_size: int) -> Layout | None:
    """Return the layout with its share of data parallel ranks; None where the world is not divided evenly."""
    ranks = prod(int(layout[split]) for split in splits)
    return {**layout, REST: world_size // ranks} if world_size % ranks == 0 else None


def _values(key: str, given: object, refuse: Callable[[str, str], None]) -> list[int | str]:
    values: list[Any] = given if isinstance(given, list) else [given]
    if not _IDENTIFIER.fullmatch(key):
        refuse(f"[layouts] {key} cannot be the name of a key", "use letters, digits and underscores")
    valid = all((type(value) is int and 0 < value < 1 << 31) or isinstance(value, str) for value in values)
    if not values or not valid or len(set(map(type, values))) > 1 or len(set(values)) < len(values):
        refuse(f"[layouts] {key} = {given!r} is invalid", "use different whole numbers above 0, or texts")
    return values
