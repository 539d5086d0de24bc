"""What NCCL would connect for the collectives of a rank on the CPU; its buffers are counted by the estimate.

As ``csrc/phantom/libraries/nccl`` connects for what PyTorch calls (``ProcessGroupNCCL.cpp``, torch 2.10 to
2.13).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ...absent.groups import ranks_here
from ...absent.objects import members
from ...records.nccl_record import nccl_notes
from ...watching.device_memory import is_on_host
from .operators import tensors_in

_TREES = frozenset({"allreduce_", "allreduce_coalesced_", "barrier"})
_TO_ALL = frozenset({"alltoall_", "alltoall_base_"})
_WITH_ROOT = {"gather_": "root_rank", "scatter_": "root_rank"}
_TO_ONE = {"send": "dst", "recv_": "src"}


@dataclass
class _Communicator:
    """A communicator, and what it has connected."""

    rank: int
    ranks: int
    here: int
    ring: bool = False
    tree: bool = False
    near: set[int] = field(default_factory=set)
    far: bool = False

    def connect(self, peers: Any) -> None:
        """Connect some peers, by their rank in it."""
        for peer in peers:
            if peer == self.rank:
                continue
            if peer // self.here == self.rank // self.here:
                self.near.add(peer)
            else:
                self.far = True


class Connections:
    """The communicators of this rank, each made when something is first asked of it."""

    def __init__(self) -> None:
        self._made: dict[Any, _Communicator] = {}
        self._coalesced = 0
        group = dist.ProcessGroup
        group._start_coalescing = self._counting(group._start_coalescing, 1)
        group._end_coalescing = self._counting(group._end_coalescing, -1)

    def note(self, group: Any, name: str, given: dict[str, Any]) -> None:
        """Note a collective of a group, by its name without the namespace and its arguments."""
        if name in _TO_ONE:
            self._note_transfer(group, int(given[_TO_ONE[name]]))
            return
        made = self._of(group)
        if name in _TO_ALL:
            made.connect(range(made.ranks))
        elif name in _WITH_ROOT:
            root = int(given[_WITH_ROOT[name]])
            made.connect(range(made.ranks) if root == made.rank else [root])
        else:
            made.ring = True
            made.tree |= name in _TREES

    def rows(self) -> dict[str, Any]:
        """Return the communicators (``NcclNotes`` of ``xmem.trace.notes``)."""
        return nccl_notes(
            [
                {
                    "ranks": made.ranks,
                    "here": made.here,
                    "ring": made.ring,
                    "tree": made.tree,
                    "near_peers": len(made.near),
                    "far_peers": made.far,
                }
                for made in self._made.values()
            ]
        )

    def _note_transfer(self, group: Any, peer: int) -> None:
        """Note that something is sent to a rank or received from it: by the group's own communicator among
        others at once, else by one of the two."""
        if self._coalesced:
            self._of(group).connect([peer])
            return
        ranks = members(group)
        key = (group.group_name, *sorted((group.rank(), peer)))
        if key not in self._made:
            place = int(peer < group.rank())
            self._made[key] = _Communicator(place, 2, ranks_here([ranks[group.rank()], ranks[peer]]))
        self._made[key].connect([0, 1])

    def _of(self, group: Any) -> _Communicator:
        name = group.group_name
        if name not in self._made:
            self._made[name] = _Communicator(group.rank(), group.size(), ranks_here(members(group)))
        return self._made[name]

    def _counting(self, original: Any, change: int) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            self._coalesced += change
            return original(*arguments, **named)

        return counted


def group_of(given: dict[str, Any]) -> Any:
    """Return the group among the arguments of a collective; None if there is none."""
    boxed = given.get("process_group")
    return None if boxed is None else dist.ProcessGroup.unbox(boxed)


def is_on_gpu(group: Any, args: Any) -> bool:
    """Return whether a collective is NCCL's: each of a group that has nothing else, since C++ makes tensors
    that nobody has marked; of one that has Gloo too, those of tensors that are not known to be the host's.
    """
    backend = str(c10d._world.pg_map.get(group, ("",))[0])
    if "nccl" not in backend:
        return False
    return "gloo" not in backend or not all(map(is_on_host, tensors_in(args)))
