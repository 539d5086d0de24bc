"""A rank of a job most of whose ranks do not run: it starts as if all were there, and goes on alone.

What a process says to its peers on the way to training goes through a store, over Gloo, and through NCCL's
collectives. NCCL's are the phantom's, which move nothing. The others would wait for ranks that never come;
here they end at once, and each rank that does not run is taken to hold what this one holds:

- The store of the job is in the process. What a peer would have written there is not waited for.
- Gloo's groups are fakes: a gather finds the own contribution once for each rank.
- Objects come from the ranks that run, through files. A rank that does not run sends what this one has.
- Barriers are passed, and a communicator that is split knows its ranks from the group that PyTorch makes.

Sources: ``torch.distributed.distributed_c10d`` and ``ProcessGroupNCCL.cpp`` of torch 2.6 to 2.13.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import os
import pickle
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..following_imports import after_import
from ..settings import Settings

_PATIENCE_S = 30.0
_POLL_S = 0.01
# Keys of a communicator's number: its place among those of its group, two ranks, or one of many roots.
_NCCL_ID = re.compile(r"(^|/)(\d+(:\d+)?|UniqueNCCLID:\d+)$")
_NCCL_ID_BYTES = 128
_PIPELINE = re.compile(r"(^|_|\b)(pp|pipe|pipeline|stages?)(_|\b|$)|pipeline", re.IGNORECASE)


class AbsentPeers:
    """The ranks of the job, of which some run.

    Args:
        settings: Settings of the capture, whose ``world`` is set.
        assume: Takes a sentence that a reader of the estimate should know.
    """

    def __init__(self, settings: Settings, assume: Callable[[str], None]) -> None:
        assert settings.world is not None
        self.size = settings.world.size
        self.running = frozenset(settings.world.ranks)
        self._settings = settings
        self._folder: Path = settings.workspace / "ranks"
        self._folder.mkdir(exist_ok=True)
        self._assume = assume
        self._sent: Counter[str] = Counter()  # messages with objects, by channel
        self.pipeline: list[int] = []

    def install(self) -> None:
        """Patch ``torch.distributed``; called once, right after ``import torch``."""
        # Its thread would look at the store, which is Python's, while the interpreter ends.
        os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
        self._note_what_does_not_run()
        after_import("torch.distributed.launcher.api", self._follow_torchrun)
        after_import("deepspeed.launcher.runner", self._follow_deepspeed)
        after_import("torch.distributed.checkpoint.default_planner", _accept_partial_checkpoints)
        if not (dist.is_available() and dist.is_nccl_available() and dist.is_gloo_available()):
            return
        for name in ("TCPStore", "FileStore"):
            _replace(name, _own_store)
        _replace("rendezvous", self._rendezvous)
        _replace("_store_based_barrier", lambda *_, **__: None)
        _replace("monitored_barrier", lambda *_, **__: None)
        _replace("ProcessGroupGloo", _FakeGloo)
        _wrap("_process_group_color", self._color)
        _wrap("new_group", self._group)
        for name, stand_in in (
            ("broadcast_object_list", self._broadcast_objects),
            ("scatter_object_list", self._scatter_objects),
            ("all_gather_object", self._all_gather_objects),
            ("gather_object", self._gather_objects),
            ("send_object_list", self._send_objects),
            ("recv_object_list", self._receive_objects),
        ):
            _replace(name, stand_in)

    # What runs.

    def ranks_of(self, group: Any) -> list[int]:
        """Return the global ranks of a group, in its order."""
        ranks: dict[int, int] = c10d._world.pg_group_ranks[group or c10d._get_default_group()]
        return sorted(ranks, key=lambda rank: ranks[rank])

    def cpu_backend(self, rank: int, size: int) -> Any:
        """Return the backend for CPU tensors of a group."""
        return _fake_backend(rank, size)

    def _note_what_does_not_run(self) -> None:
        """Tell the reader of the estimate which ranks ran."""
        ran = sorted(self.running)
        named = f"rank {ran[0]} ran" if len(ran) == 1 else f"ranks {_in_words(ran)} ran"
        self._assume(f"only {named}, out of {self.size}; the others are taken to hold as much as these do")
        if self.size > int(os.environ["LOCAL_WORLD_SIZE"]):
            self._assume("NCCL's buffers for ranks on other nodes are not modelled; leave some room for them")

    # Launchers: the process that would start all ranks of a node starts the one that this one stands for.

    def _follow_torchrun(self, module: ModuleType) -> None:
        module.launch_agent = _launch_one  # type: ignore[attr-defined]

    def _follow_deepspeed(self, module: ModuleType) -> None:
        def main(args: Any = None) -> None:
            given = module.parse_args(args)
            words = [] if given.no_python else [sys.executable, "-u", *(["-m"] if given.module else [])]
            local = [] if given.no_local_rank else [f"--local_rank={os.environ['LOCAL_RANK']}"]
            sys.exit(subprocess.call([*words, given.user_script, *local, *given.user_args]))

        module.main = main  # type: ignore[attr-defined]

    # The store.

    def _rendezvous(
        self, _url: str, rank: int = -1, world_size: int = -1, **_named: Any
    ) -> Iterator[tuple[Any, int, int]]:
        own = int(os.environ["RANK"]) if rank < 0 else rank
        yield _own_store(), own, int(os.environ["WORLD_SIZE"]) if world_size < 0 else world_size

    # Groups.

    def _color(self, original: Callable[..., int], ranks: list[int]) -> int:
        """Tell the phantom's NCCL which ranks a communicator will have that is split off by this colour."""
        color, own = original(ranks), dist.get_rank()
        if own in ranks:
            tell = ctypes.CDLL(None).xmem_phantom_group_of_color
            tell.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int]
            tell.restype = None
            tell(color, ranks.index(own), len(ranks))
        return color

    def _group(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Make a group; one whose name says that it is a pipeline tells which ranks differ."""
        group = original(*arguments, **named)
        name = str(named.get("group_desc") or "")
        if group != dist.GroupMember.NON_GROUP_MEMBER and _PIPELINE.search(name):
            ranks = self.ranks_of(group)
            if len(ranks) > len(self.pipeline):
                self.pipeline = ranks
        return group

    # Objects. A group's messages are counted by every rank alike, so the count names one.

    def _broadcast_objects(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        *_: Any,
        group_src: int | None = None,
        **__: Any,
    ) -> None:
        ranks = self._ranks_or_none(group)
        if ranks is None:
            return
        source = _global(ranks, src if src is not None else 0 if group_src is None else None, group_src)
        (found,) = self._exchange(ranks, group, list(object_list), senders=[source])
        if found is _ABSENT:
            self._take_own("broadcast_object_list", source)
        else:
            object_list[:] = list(found)

    def _scatter_objects(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        ranks = self._ranks_or_none(group)
        if ranks is None:
            return
        source = _global(ranks, src if src is not None else 0 if group_src is None else None, group_src)
        (found,) = self._exchange(ranks, group, list(scatter_object_input_list or []), senders=[source])
        if found is _ABSENT:
            self._take_own("scatter_object_list", source)
        else:
            scatter_object_output_list[0] = found[ranks.index(dist.get_rank())]

    def _all_gather_objects(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        ranks = self._ranks_or_none(group)
        if ranks is not None:
            object_list[:] = self._gathered(ranks, group, obj)

    def _gather_objects(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        ranks = self._ranks_or_none(group)
        if ranks is None:
            return
        found = self._gathered(
            ranks, group, obj, only=_global(ranks, dst if group_dst is None else None, group_dst)
        )
        if object_gather_list is not None and found:
            object_gather_list[:] = found

    def _send_objects(
        self,
        object_list: list[Any],
        dst: int | None = None,
        group: Any = None,
        *_: Any,
        group_dst: int | None = None,
        **__: Any,
    ) -> None:
        ranks = self._ranks_or_none(group)
        if ranks is not None:
            own, other = dist.get_rank(), _global(ranks, dst, group_dst)
            self._post(f"{self._channel(group)}.{own}-{other}", own, object_list)

    def _receive_objects(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        *_: Any,
        group_src: int | None = None,
        **__: Any,
    ) -> int:
        ranks = self._ranks_or_none(group)
        if ranks is None:
            return -1
        own, other = dist.get_rank(), _global(ranks, src, group_src)
        channel = f"{self._channel(group)}.{other}-{own}"
        found: Any = self._take(self._next(channel), other) if other in self.running else _ABSENT
        if found is _ABSENT:
            self._take_own("recv_object_list", other)
        else:
            object_list[:] = found
        return other

    def _gathered(self, ranks: list[int], group: Any, value: Any, only: int | None = None) -> list[Any]:
        """Return what each rank of a group gives; what a rank gives that does not run is this one's."""
        found = self._exchange(ranks, group, value, senders=ranks, receiver=only)
        return [_of_absent_rank(value) if other is _ABSENT else other for other in found]

    def _exchange(
        self, ranks: list[int], group: Any, value: Any, *, senders: list[int], receiver: int | None = None
    ) -> list[Any]:
        """Post a value if this rank is a sender, and return those of all senders; none where this rank does
        not receive."""
        own = dist.get_rank()
        message = self._next(self._channel(group))
        if own in senders and len(self.running.intersection(ranks)) > 1:
            self._write(message, own, value)
        if receiver is not None and own != receiver:
            return []
        return [
            value if sender == own else self._take(message, sender) if sender in self.running else _ABSENT
            for sender in senders
        ]

    def _channel(self, group: Any) -> str:
        name = str((group or c10d._get_default_group()).group_name)
        return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()[:16]

    def _next(self, channel: str) -> str:
        self._sent[channel] += 1
        return f"{channel}.{self._sent[channel]}"

    def _post(self, channel: str, rank: int, value: Any) -> None:
        self._write(self._next(channel), rank, list(value))

    def _write(self, message: str, rank: int, value: Any) -> None:
        partial = self._folder / f"partial.{os.getpid()}"
        partial.write_bytes(pickle.dumps(value))
        partial.replace(self._folder / f"{message}.{rank}")

    def _take(self, message: str, rank: int) -> Any:
        """Return what a rank that runs has posted, waiting for it a while."""
        path, until = self._folder / f"{message}.{rank}", time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            try:
                return pickle.loads(path.read_bytes())
            except FileNotFoundError:
                time.sleep(_POLL_S)
        self._assume(f"rank {rank} sent no object within {_PATIENCE_S:g} s; the ranks run different code")
        return _ABSENT

    def _take_own(self, name: str, source: int) -> None:
        # What this rank goes on with may not do. The parent may run the source, too.
        self._settings.want_ranks({source, *self.pipeline})
        self._assume(
            f"rank {source} does not run, so what it sends with {name} is unknown: rank {dist.get_rank()} "
            f"kept its own objects; add {source} to --ranks to receive the real ones"
        )

    def _ranks_or_none(self, group: Any) -> list[int] | None:
        """Return the ranks of a group; None if this rank is not in it."""
        return None if group == dist.GroupMember.NON_GROUP_MEMBER else self.ranks_of(group)


_ABSENT = object()


def _of_absent_rank(value: Any) -> Any:
    """Return what a rank gives that does not run: what this one gives, but no share of a checkpoint. What is
    alike on several ranks is saved by one of them, which has to be one that runs."""
    if type(value).__name__ in ("SavePlan", "LoadPlan"):
        return dataclasses.replace(value, items=[])
    return pickle.loads(pickle.dumps(value))


def _global(ranks: list[int], rank: int | None, group_rank: int | None) -> int:
    return ranks[group_rank or 0] if rank is None else rank


def _in_words(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"


def _accept_partial_checkpoints(module: ModuleType) -> None:
    """Save the shares of the ranks that run: the plan of all ranks, which others would complete, is valid."""
    validate, nothing = module._validate_global_plan, module.Metadata({})
    module._validate_global_plan = lambda _plan, _metadata: validate([], nothing)  # type: ignore[attr-defined]


def _launch_one(config: Any, entrypoint: Any, args: list[Any]) -> dict[int, Any]:
    """Stand in for ``torch.distributed.launcher.api.launch_agent``."""
    local = os.environ["LOCAL_RANK"]
    os.environ.update(
        TORCHELASTIC_RUN_ID=str(config.run_id or "1"),
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS=str(config.max_restarts),
        TORCHELASTIC_USE_AGENT_STORE="False",
        ROLE_NAME=str(config.role),
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if callable(entrypoint):
        return {int(local): entrypoint(*args)}
    words = [str(entrypoint), *(str(word).replace("${local_rank}", local) for word in args)]
    if status := subprocess.call(words):
        sys.exit(status)
    return {}


# The store.


class _OwnStore(dist.Store):  # type: ignore[misc]
    """A store that one process has for itself, as if its peers had written theirs."""

    host, port = "127.0.0.1", 29500

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self._kept[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        if key not in self._kept and _NCCL_ID.search(key):
            return hashlib.shake_128(key.encode()).digest(_NCCL_ID_BYTES)
        return self._kept.get(key, b"")

    def add(self, key: str, value: int) -> int:
        total = int(self._kept.get(key, b"0")) + value
        self._kept[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self._kept.get(key, expected.encode() if key not in self._kept else b"") == expected.encode():
            self.set(key, desired)
        return self._kept.get(key, expected.encode())

    def append(self, key: str, value: str | bytes) -> None:
        self._kept[key] = self._kept.get(key, b"") + (value.encode() if isinstance(value, str) else value)

    def check(self, keys: list[str]) -> bool:
        return all(key in self._kept for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return at once: nobody else writes here."""

    def delete_key(self, key: str) -> bool:
        return self._kept.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._kept)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True


@functools.cache
def _the_store() -> _OwnStore:
    return _OwnStore()


def _own_store(*_: Any, **__: Any) -> _OwnStore:
    """Return the store of this process, whatever store was asked for."""
    return _the_store()


# Gloo.


class _FakeGlooType(type):
    """Lets backends that the class makes pass for its instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (_Gloo, _Fake))

    def __getattr__(cls, name: str) -> Any:
        return getattr(_Gloo, name)


class _FakeGloo(metaclass=_FakeGlooType):
    """Stands in for ``ProcessGroupGloo``."""

    def __new__(cls, _store: Any, rank: int, size: int, *_: Any, **__: Any) -> Any:
        return _fake_backend(rank, size)


_Gloo: Any = getattr(dist, "ProcessGroupGloo", type(None))
_Fake: Any = (
    getattr(torch._C._distributed_c10d, "FakeProcessGroup", type(None)) if dist.is_available() else None
)


def _fake_backend(rank: int, size: int) -> Any:
    """Return a backend for CPU tensors that reaches nobody. Its way to be made has changed with torch 2.9."""
    _Fake._set_sequence_number_for_group = lambda _: None  # which it lacks, and PyTorch calls for Gloo
    make = getattr(_Fake, "_create_internal", _Fake)
    return make(rank, size)


_EXPORTERS = (
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.distributed.rendezvous",
    "torch.distributed.device_mesh",
)


def _replace(name: str, stand_in: Any) -> None:
    """Replace a name of ``torch.distributed`` wherever it is exported."""
    original = getattr(c10d, name, None) or getattr(dist, name, None)
    if original is None:
        return
    for module_name in _EXPORTERS:
        module = sys.modules.get(module_name)
        if getattr(module, name, None) is original:
            setattr(module, name, stand_in)


def _wrap(name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(c10d, name, None)
    if original is not None:
        _replace(name, functools.wraps(original)(functools.partial(wrapper, original)))
