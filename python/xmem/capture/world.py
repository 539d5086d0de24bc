"""The world of a distributed job of which only some ranks run: each is one process that stands for a rank."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from xmem.errors import ConfigError
from xmem.records import dataclass
from xmem.text.numbers import whole_number

GPUS_PER_NODE = 8
_MOST_CARDS = 120
MOST_RANKS = 16  # that xMem adds by itself
_ALL_STAGES = 4  # pipelines of up to this many stages run all of them
_STARTER = Path(__file__).parent / "child" / "start_ranks.py"

# Of each launcher: its options for the number of nodes, and of processes on each node or in all.
_NODES = ("nnodes", "num_machines", "num_nodes")
_PER_NODE = ("nproc_per_node", "num_gpus")
_IN_ALL = ("num_processes",)
_LAUNCHERS = re.compile(r"(torchrun|accelerate|deepspeed|torch\.distributed\.(run|launch))$")


@dataclass(frozen=True)
class World:
    """A distributed job, and the ranks of it that run.

    Attributes:
        size: Number of ranks that the script believes in.
        ranks: Those that run, in order.
        gpus_per_node: GPUs of each node; rank r has GPU r modulo this many.
        is_chosen: Whether the ranks were chosen for the user, and more may follow once the groups of the job
            are known.

    Raises:
        ConfigError: A number makes no sense.
    """

    size: int
    ranks: tuple[int, ...]
    gpus_per_node: int = GPUS_PER_NODE
    is_chosen: bool = False

    def __post_init__(self) -> None:
        if self.size < 1 or self.gpus_per_node < 1:
            raise ConfigError(
                "a job needs at least one rank and one GPU per node",
                "check --world-size and --gpus-per-node",
            )
        if not self.ranks or min(self.ranks) < 0 or max(self.ranks) >= self.size:
            raise ConfigError(
                f"with {self.size} ranks, --ranks must name ranks from 0 to {self.size - 1}", "check --ranks"
            )
        if self.cards > _MOST_CARDS:
            raise ConfigError(
                f"these ranks are on {len(self._nodes)} nodes with {self.cards} GPUs in all, and the phantom "
                f"machine has at most {_MOST_CARDS}",
                "name fewer ranks",
            )

    @property
    def _nodes(self) -> list[int]:
        return sorted({rank // self.gpus_per_node for rank in self.ranks})

    def cards_with(self, rank: int) -> int:
        """Return how many GPUs the nodes would have if one more rank ran."""
        return len({*self._nodes, rank // self.gpus_per_node}) * self.gpus_per_node

    @property
    def cards(self) -> int:
        """GPUs of the nodes that have a rank that runs."""
        return len(self._nodes) * self.gpus_per_node

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one once for each rank."""
        return [sys.executable, str(_STARTER), *command]

    def environment(self) -> dict[str, str]:
        """Return what the starter of the ranks looks at."""
        first_card = {node: place * self.gpus_per_node for place, node in enumerate(self._nodes)}
        per_node = min(self.gpus_per_node, self.size)
        ranks = [
            {
                "rank": rank,
                "local_rank": rank % self.gpus_per_node,
                "node": rank // self.gpus_per_node,
                "cards": [first_card[rank // self.gpus_per_node] + i for i in range(self.gpus_per_node)],
            }
            for rank in self.ranks
        ]
        nodes = -(-self.size // self.gpus_per_node)
        return {
            "XMEM_RANKS": json.dumps(
                {"size": self.size, "per_node": per_node, "nodes": nodes, "ranks": ranks}
            )
        }

    def settings(self) -> dict[str, Any]:
        """Return what the processes of the job are told."""
        return {"size": self.size, "ranks": list(self.ranks)}

    def missing_in(self, workspace: Path) -> tuple[int, ...]:
        """Return the ranks that do not run and whose objects were asked for."""
        try:
            wanted = {int(line) for line in (workspace / "wanted").read_text().split()}
        except FileNotFoundError:
            return ()
        return tuple(sorted(wanted.difference(self.ranks)))

    def with_ranks(self, ranks: Iterable[int]) -> World:
        """Return the world in which these ranks run, too."""
        return replace(self, ranks=tuple(sorted({*self.ranks, *ranks})))

    def with_unlike(self, notes: Mapping[str, Any]) -> World:
        """Return the world with ranks that may hold more than those that ran.

        Of pipelines, a rank of each stage; of long ones the first, the second and the last: those between
        hold the layers of the second, and fewer micro-batches. Of experts, and of groups whose name tells
        nothing, the last rank.

        Args:
            notes: The ``phantom`` object of a trace's metadata.
        """
        if not self.is_chosen:
            return self
        world = notes.get("world", {})
        stages = [int(rank) for rank in world.get("pipeline", [])]
        if len(stages) > _ALL_STAGES:
            stages = [*stages[:2], stages[-1]]
        wider = self.with_ranks(stages)
        for rank in map(int, world.get("ends", [])):
            if len(wider.ranks) < MOST_RANKS and wider.cards_with(rank) <= _MOST_CARDS:
                wider = wider.with_ranks([rank])
        return wider


def world_of(
    size: int | None, ranks: str | None, gpus_per_node: int | None, command: Sequence[str]
) -> World | None:
    """Return the world that options and a launcher on the command line describe; None if all ranks run.

    Args:
        size: Number of ranks; by default what the launcher would start.
        ranks: ``0,127,1023``, or ``auto``: the first, the last, and one of each pipeline stage.
        gpus_per_node: By default as many as the launcher starts on each node, or 8.
        command: The command line.

    Raises:
        ConfigError: They are invalid, or the number of ranks is unknown.
    """
    if size is None and ranks is None:
        if gpus_per_node is not None:
            raise ConfigError(
                "--gpus-per-node applies only to jobs that run some of their ranks",
                "add --world-size",
            )
        return None
    nodes, per_node, in_all = _launched(command)
    local = gpus_per_node or per_node or GPUS_PER_NODE
    if size is None:
        size = in_all or (nodes * per_node if per_node else None)
    if size is None:
        raise ConfigError("--ranks needs to know how many ranks there are", "add --world-size")
    local = min(local, size) if gpus_per_node is None else local
    if ranks is None or ranks == "auto":
        return World(size, tuple(sorted({0, size - 1})), local, is_chosen=True)
    try:
        named = tuple(sorted({int(rank) for rank in ranks.split(",")}))
    except ValueError:
        raise ConfigError(
            f"--ranks {ranks} is invalid", "write auto, or ranks separated by commas, such as 0,127,1023"
        ) from None
    return World(size, named, local)


def launched_world(command: Sequence[str]) -> World | None:
    """Return the world that a launcher on the command line would start; None for one process, or an unknown
    number."""
    nodes, per_node, in_all = _launched(command)
    size = in_all or (nodes * per_node if per_node else 1)
    return world_of(size, "auto", None, command) if size > 1 else None


def _launched(command: Sequence[str]) -> tuple[int, int | None, int | None]:
    """Return how many nodes, processes per node and processes in all a launcher would start."""
    launcher = next((place for place, word in enumerate(command) if _LAUNCHERS.search(word)), None)
    if launcher is None:
        return 1, None, None
    nodes, per_node, in_all = 1, None, None
    words = list(
        takewhile(lambda word: word not in ("-m", "--module") and word[-3:] != ".py", command[launcher:])
    )
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.lstrip("-").partition("=")
        number = whole_number((value or following).rpartition(":")[2])  # of MIN:MAX nodes the most
        if not word.startswith("-") or number is None:
            continue
        name = name.replace("-", "_")
        if name in _NODES:
            nodes = number or 1
        elif name in _PER_NODE:
            per_node = number
        elif name in _IN_ALL:
            in_all = number
    return nodes, per_node or (in_all // nodes if in_all else None), in_all
