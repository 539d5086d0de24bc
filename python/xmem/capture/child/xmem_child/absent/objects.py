"""Objects that ranks send each other: files between the ranks that run, and the own object for every other.

Stands in for the object collectives of ``torch.distributed.distributed_c10d`` (torch 2.6 to 2.13), with their
arguments.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_PATIENCE_S = 30.0
_POLL_S = 0.01
_ABSENT = object()


class Objects:
    """The object collectives.

    Args:
        running: The ranks that run.
        folder: Where they leave objects for each other.
        absent: Takes a rank that does not run, and the function in which it should have sent something.
        assume: Takes a sentence that a reader of the estimate should know.
    """

    def __init__(
        self,
        running: frozenset[int],
        folder: Path,
        absent: Callable[[int, str], None],
        assume: Callable[[str], None],
    ) -> None:
        self._running = running
        self._folder = folder
        self._absent = absent
        self._assume = assume
        # Of messages, by channel. Every rank of a group counts alike, so the number names one.
        self._sent: Counter[str] = Counter()
        folder.mkdir(exist_ok=True)

    def broadcast_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        *_: Any,
        group_src: int | None = None,
        **__: Any,
    ) -> None:
        """Take the list of the rank that sends one."""
        ranks = members(group)
        if ranks:
            source = _source(ranks, src, group_src)
            (found,) = self._exchange(ranks, group, list(object_list), senders=[source])
            object_list[:] = self._or_own(found, object_list, source, "broadcast_object_list")

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        """Take the own part of the list of the rank that sends one."""
        ranks = members(group)
        if ranks:
            source, place = _source(ranks, src, group_src), ranks.index(dist.get_rank())
            (found,) = self._exchange(ranks, group, scatter_object_input_list, senders=[source])
            part = found if found is _ABSENT else found[place]
            own = scatter_object_output_list[0]
            scatter_object_output_list[0] = self._or_own(part, own, source, "scatter_object_list")

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        """Collect what every rank gives."""
        ranks = members(group)
        if ranks:
            object_list[:] = self._gathered(ranks, group, obj)

    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        """Collect what every rank gives, on one of them."""
        ranks = members(group)
        if ranks:
            found = self._gathered(ranks, group, obj, receiver=_source(ranks, dst, group_dst))
            if object_gather_list is not None and found:
                object_gather_list[:] = found

    def send_object_list(
        self,
        object_list: list[Any],
        dst: int | None = None,
        group: Any = None,
        *_: Any,
        group_dst: int | None = None,
        **__: Any,
    ) -> None:
        """Leave a list for another rank."""
        ranks = members(group)
        if ranks:
            own, other = dist.get_rank(), _source(ranks, dst, group_dst)
            self._write(self._next(f"{_channel(group)}.{own}-{other}"), list(object_list))

    def recv_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        *_: Any,
        group_src: int | None = None,
        **__: Any,
    ) -> int:
        """Take a list of another rank; return which."""
        ranks = members(group)
        if not ranks:
            return -1
        other = _source(ranks, src, group_src)
        message = self._next(f"{_channel(group)}.{other}-{dist.get_rank()}")
        object_list[:] = self._or_own(self._of(message, other), object_list, other, "recv_object_list")
        return other

    def _or_own(self, found: Any, own: Any, source: int, name: str) -> Any:
        """Return what a rank sent, or what this one has where that rank does not run."""
        if found is not _ABSENT:
            return found
        self._absent(source, name)
        return own

    def _gathered(self, ranks: list[int], group: Any, value: Any, receiver: int | None = None) -> list[Any]:
        found = self._exchange(ranks, group, value, senders=ranks, receiver=receiver)
        return [_of_absent_rank(value) if other is _ABSENT else other for other in found]

    def _exchange(
        self, ranks: list[int], group: Any, value: Any, *, senders: list[int], receiver: int | None = None
    ) -> list[Any]:
        """Post a value if this rank is a sender, and return those of all senders; none where this rank does
        not receive."""
        own = dist.get_rank()
        message = self._next(_channel(group))
        if own in senders and len(self._running.intersection(ranks)) > 1:
            self._write(message, value)
        if receiver not in (None, own):
            return []
        return [value if sender == own else self._of(message, sender) for sender in senders]

    def _next(self, channel: str) -> str:
        self._sent[channel] += 1
        return f"{channel}.{self._sent[channel]}"

    def _write(self, message: str, value: Any) -> None:
        partial = self._folder / f"partial.{os.getpid()}"
        partial.write_bytes(pickle.dumps(value))
        partial.replace(self._folder / f"{message}.{dist.get_rank()}")

    def _of(self, message: str, rank: int) -> Any:
        """Return what a rank has posted, waiting for it a while if it runs."""
        if rank not in self._running:
            return _ABSENT
        path, until = self._folder / f"{message}.{rank}", time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            try:
                return pickle.loads(path.read_bytes())
            except FileNotFoundError:
                time.sleep(_POLL_S)
        self._assume(f"rank {rank} sent no object within {_PATIENCE_S:g} s; the ranks run different code")
        return _ABSENT


def members(group: Any) -> list[int]:
    """Return the global ranks of a group, in its order; none where this rank is not one of them."""
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return []
    ranks: dict[int, int] = c10d._world.pg_group_ranks[group or c10d._get_default_group()]
    return sorted(ranks, key=lambda rank: ranks[rank])


def _source(ranks: list[int], rank: int | None, group_rank: int | None) -> int:
    """Return the global rank that an object collective names; rank 0 by default."""
    if group_rank is not None:
        return ranks[group_rank]
    return 0 if rank is None else rank


def _channel(group: Any) -> str:
    name = str((group or c10d._get_default_group()).group_name)
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()[:16]


def _of_absent_rank(value: Any) -> Any:
    """Return what a rank gives that does not run: what this one gives, but no share of a checkpoint. What is
    alike on several ranks is saved by one of them, which has to be one that runs."""
    if type(value).__name__ in ("SavePlan", "LoadPlan"):
        return dataclasses.replace(value, items=[])
    return pickle.loads(pickle.dumps(value))
