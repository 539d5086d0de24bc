"""A rank of a job most of whose ranks do not run: it starts as if all were there, and goes on alone.

What a process says to its peers on the way to training goes through a store, over Gloo, and through NCCL's
collectives. NCCL's are the phantom's, which move nothing, or, on the CPU, made as all that computes
(``on_cpu/fake/collectives``). The others would wait for ranks that never come; here they end at once, and
each rank that does not run is taken to hold what this one holds:

- The store of the job is in the process. What a peer would have written there is not waited for.
- Gloo's groups are fakes: a gather finds the own contribution once for each rank.
- Objects come from the ranks that run, through files. A rank that does not run sends what this one has.
- Barriers are passed, and a group that is split off another is made as any.

Sources: ``torch.distributed.distributed_c10d`` and ``ProcessGroupNCCL.cpp`` of torch 2.6 to 2.13.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch.distributed as dist

from ..following_imports import after_import
from ..settings import Settings
from .exports import replace, wrap
from .gloo import FakeGloo, fake_backend
from .groups import Groups
from .launchers import follow_launchers
from .objects import Objects, members
from .store import own_rendezvous, own_store


class AbsentPeers:
    """The ranks of the job, of which some run.

    Args:
        settings: Settings of the capture, whose ``world`` is set.
        assume: Takes a sentence that a reader of the estimate should know.

    Attributes:
        size: Number of ranks that the script believes in.
        running: Those that run.
        groups: Those that this rank is in.
    """

    def __init__(self, settings: Settings, assume: Callable[[str], None]) -> None:
        assert settings.world is not None
        self.size = settings.world.size
        self.running = frozenset(settings.world.ranks)
        self.groups = Groups(int(os.environ["RANK"]), self.size)
        self._settings = settings
        self._assume = assume

    def install(self) -> None:
        """Patch ``torch.distributed``; called once, right after ``import torch``."""
        self._note_what_does_not_run()
        follow_launchers()
        after_import("torch.distributed.checkpoint.default_planner", _accept_partial_checkpoints)
        for name in ("TCPStore", "FileStore"):
            replace(name, own_store)
        replace("rendezvous", own_rendezvous)
        replace("_store_based_barrier", lambda *_, **__: None)
        replace("monitored_barrier", lambda *_, **__: None)
        replace("ProcessGroupGloo", FakeGloo)
        wrap("new_group", self._new_group)
        wrap("split_group", self._split_group)
        objects = Objects(self.running, self._settings.workspace / "ranks", self._is_missing, self._assume)
        for collective in (
            objects.broadcast_object_list,
            objects.scatter_object_list,
            objects.all_gather_object,
            objects.gather_object,
            objects.send_object_list,
            objects.recv_object_list,
        ):
            replace(collective.__name__, collective)

    def cpu_backend(self, rank: int, size: int) -> Any:
        """Return the backend for CPU tensors of a group."""
        return fake_backend(rank, size)

    def _split_group(
        self,
        _original: Callable[..., Any],
        parent_pg: Any = None,
        split_ranks: Sequence[Sequence[int]] = (),
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: str | None = None,
    ) -> Any:
        """Stand in for ``split_group``: make the part that this rank is in as ``new_group`` does.

        That splits NCCL's communicator as well. From torch 2.9 on, the original splits the CPU's backend too,
        which fakes cannot.
        """
        global_ranks, own = members(parent_pg), dist.get_rank()
        parts = [[global_ranks[place] for place in sorted(part)] for part in split_ranks]
        mine = next((part for part in parts if own in part), None)
        if mine is None:
            return None
        return dist.new_group(
            mine, timeout, pg_options=pg_options, use_local_synchronization=True, group_desc=group_desc
        )

    def _note_what_does_not_run(self) -> None:
        """Tell the reader of the estimate which ranks ran."""
        ran = sorted(self.running)
        named = f"rank {ran[0]} ran" if len(ran) == 1 else f"ranks {_in_words(ran)} ran"
        self._assume(f"only {named}, out of {self.size}; the others are taken to hold as much as these do")
        if self.size > int(os.environ["LOCAL_WORLD_SIZE"]):
            self._assume(
                "NCCL's buffers for ranks on other nodes are those of InfiniBand with GPUDirect RDMA, and "
                "one network card for each GPU"
            )

    def _new_group(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Make a group, and note which ranks it has."""
        group = original(*arguments, **named)
        self.groups.add(named.get("group_desc"), members(group))
        return group

    def _is_missing(self, rank: int, name: str) -> None:
        """Note that a rank which does not run should have sent something. The parent may run it, too."""
        self._settings.want_ranks({rank, *self.groups.pipeline})
        self._assume(
            f"rank {rank} does not run, so what it sends with {name} is unknown: rank {dist.get_rank()} "
            f"kept its own objects; add {rank} to --ranks to receive the real ones"
        )


def _in_words(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"


def _accept_partial_checkpoints(module: ModuleType) -> None:
    """Save the shares of the ranks that run: the plan of all ranks, which others would complete, is valid."""
    validate, nothing = module._validate_global_plan, module.Metadata({})
    module._validate_global_plan = lambda _plan, _metadata: validate([], nothing)  # type: ignore[attr-defined]
