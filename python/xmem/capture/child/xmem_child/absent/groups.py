"""The groups that this rank is in: its coordinates in the job, and which of them tell ranks apart.

Ranks of a pipeline hold different layers. Ranks that share a batch, a tensor or a sequence, or that hold
copies, are alike but for padding of the last. Of experts, and of groups whose name tells nothing, the first
and the last rank may differ.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_PIPELINE = re.compile(r"(^|_|\b)(pp|pipe|pipeline|stages?)(_|\b|$)|pipeline", re.IGNORECASE)
_ALIKE = re.compile(
    r"(^|_|\b)([df]?sdp|e?fsdp|ddp|e?dp|data|shard(ed)?|rep|replica(te)?|batch|loss|e?tp|tensor|model|mp|cp|context|sp"
    r"|seq|sequence|embeddings?|default)(_|\b|$)",
    re.IGNORECASE,
)
_EXPERTS = re.compile(r"(^|_|\b)(ep|experts?|expert_model_parallel\w*)(_group\d*|\b|$)", re.IGNORECASE)
_NAMES_OF_NOTHING = re.compile(r"^(undefined|mesh_dim_\d+|.*:split:\d+|)$")


@dataclass(frozen=True)
class Group:
    """A group that this rank is in.

    Attributes:
        name: What the script calls it; empty if it has no name.
        ranks: Its global ranks, in order.
        place: Of this rank among them.
    """

    name: str
    ranks: tuple[int, ...]
    place: int

    @property
    def is_pipeline(self) -> bool:
        """Whether its ranks hold different layers, by its name."""
        return bool(_PIPELINE.search(self.name))

    @property
    def is_alike(self) -> bool:
        """Whether its ranks hold as much as each other, by its name."""
        return bool(_ALIKE.search(self.name)) and not (self.is_pipeline or _EXPERTS.search(self.name))


class Groups:
    """The groups that a rank is in, in the order in which they are made; those of the same ranks once."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._made: dict[tuple[int, ...], Group] = {}

    def add(self, description: str | None, ranks: list[int]) -> None:
        """Note a group of more than one rank and of fewer than all; a later one may name it."""
        if self._rank not in ranks or not 1 < len(ranks) < self._size:
            return
        key, name = tuple(ranks), _name(description or "")
        if key not in self._made or (name and not self._made[key].name):
            self._made[key] = Group(name, key, ranks.index(self._rank))

    @property
    def pipeline(self) -> tuple[int, ...]:
        """The ranks of the largest pipeline that this one is in."""
        return max((group.ranks for group in self._made.values() if group.is_pipeline), key=len, default=())

    @property
    def ends(self) -> list[int]:
        """The last ranks of groups whose ranks may differ, without pipelines."""
        unlike = (g for g in self._made.values() if not g.is_alike and not g.is_pipeline)
        return sorted({group.ranks[-1] for group in unlike})

    def places(self) -> list[dict[str, Any]]:
        """Return where this rank is in each group that has a name: name, index and size."""
        named = (group for group in self._made.values() if group.name)
        return [{"name": group.name, "index": group.place, "size": len(group.ranks)} for group in named]


def _name(description: str) -> str:
    if _NAMES_OF_NOTHING.match(description):
        return ""
    return description.lower().removeprefix("mesh_").removesuffix("_group")


def ranks_here(ranks: Sequence[int]) -> int:
    """Return how many of these ranks are on the server of this one."""
    per_server, own = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["RANK"])
    return sum(rank // per_server == own // per_server for rank in ranks)
