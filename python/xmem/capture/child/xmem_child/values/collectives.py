"""Exchanges the values of small tensors between ranks, since the phantom's NCCL moves nothing.

Each rank posts the values that it puts in to the store of the process group, and looks for those of its peers
when somebody asks for the result: a rank does not wait where a GPU would not. In a group without peers that
are real processes (one of one rank, a fake one), peers hold what this rank holds.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from ..settings import Settings
from . import host_tensors
from .contents import Contents
from .engine import Args, Engine, Kwargs
from .imbalance import Imbalance
from .operators import Operator, unfollowed
from .reads import Reads

_MOST_BYTES = 1 << 12
_PATIENCE = timedelta(seconds=20)
_PREFIX = "xmem_phantom/values"

Values: TypeAlias = "torch.Tensor | None"
"""Of one rank; None where it does not know them."""
Told: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class Collectives:
    """Kernels of ``torch.distributed``'s operators (namespace ``c10d``).

    Args:
        engine: Gives the known values.
        reads: Takes note of guesses.
        assume: Takes a sentence that a reader of the estimate should know.
        imbalance: What peers tell of tokens that they send here.
        peers: The ranks that run, where not all of them do.
    """

    def __init__(
        self,
        engine: Engine,
        reads: Reads,
        assume: Callable[[str], None],
        imbalance: Imbalance,
        peers: RunningPeers | None = None,
    ) -> None:
        self._imbalance = imbalance
        self._engine = engine
        self._running = peers
        self._reads = reads
        self._contents: Contents = engine.contents
        self._assume = assume
        self._sent: Counter[str] = Counter()  # by channel
        self.kernels: dict[str, Callable[[Operator, Any, Args, Kwargs], Any]] = {
            "c10d::broadcast_": self._after(self._broadcast),
            "c10d::allreduce_": self._after(self._all_reduce),
            "c10d::allreduce_coalesced_": self._after(self._all_reduce),
            "c10d::reduce_": self._after(self._reduce),
            "c10d::_allgather_base_": self._after(self._all_gather_base),
            "c10d::allgather_": self._after(self._all_gather),
            "c10d::allgather_into_tensor_coalesced_": self._after(self._all_gather_coalesced),
            "c10d::_reduce_scatter_base_": self._after(self._reduce_scatter),
            "c10d::alltoall_base_": self._after(self._all_to_all),
            "c10d::scatter_": self._after(self._scatter),
            "c10d::send": self._after(self._send),
            "c10d::recv_": self._after(self._receive),
        }

    def _after(self, share: Callable[..., list[Any]]) -> Callable[[Operator, Any, Args, Kwargs], Any]:
        """Return the kernel that calls the operator, and then keeps what follows from the ranks' inputs."""

        def kernel(operator: Operator, keys: Any, args: Args, kwargs: Kwargs) -> Any:
            with unfollowed():
                group = _Group(next(a for a in (*args, *kwargs.values()) if _is_group(a)), self._running)
                given = {argument.name: a for argument, a in zip(operator.arguments, args, strict=False)}
                keep = share(group, {**given, **kwargs})
                result = operator.call(keys, args, kwargs)
                self._engine.forget_written(operator, args, kwargs)
                for tensor, find in keep:
                    if isinstance(find, float):
                        self._contents.note_share(tensor, find)
                    else:
                        self._keep(tensor, find)
            return result

        return kernel

    def _keep(self, tensor: torch.Tensor, find: Callable[[], Values]) -> None:
        size, strides, dtype = tensor.size(), tensor.stride(), tensor.dtype

        def found() -> Values:
            with unfollowed():
                values = find()
                if values is None:
                    return None
                return host_tensors.empty_strided(size, strides, dtype=dtype).copy_(values.reshape(size))

        if self._contents.is_fake(tensor):
            self._contents.set_later(tensor, found)
        elif self._running is not None and (values := found()) is not None:
            tensor.copy_(values)  # nothing else brings them to the host

    # One for each collective: what each tensor will hold, as (tensor, how to find it), or for a mask of which
    # only the share that is true is known, as (mask, share).

    def _broadcast(self, group: _Group, given: Kwargs) -> list[Any]:
        (tensor,) = given["tensors"]
        channel, post = self._post(group, tensor, [tensor])
        form = _form(tensor)
        if not channel:
            return []
        root = int(given["root_rank"])
        return [(tensor, lambda: self._of_root(group, channel, root, form, post)[0])]

    def _all_reduce(self, group: _Group, given: Kwargs) -> list[Any]:
        return [(tensor, self._reduced(group, tensor)) for tensor in given["tensors"]]

    def _reduce(self, group: _Group, given: Kwargs) -> list[Any]:
        (tensor,) = given["tensors"]
        find = self._reduced(group, tensor)
        return [(tensor, find)] if group.rank == int(given["root_rank"]) else []

    def _all_gather_base(self, group: _Group, given: Kwargs) -> list[Any]:
        return self._gathered(group, given["output_tensor"], given["input_tensor"])

    def _all_gather_coalesced(self, group: _Group, given: Kwargs) -> list[Any]:
        pairs = zip(given["outputs"], given["inputs"], strict=True)
        return [kept for output, tensor in pairs for kept in self._gathered(group, output, tensor)]

    def _all_gather(self, group: _Group, given: Kwargs) -> list[Any]:
        (outputs,), (tensor,) = given["output_tensors"], given["input_tensors"]
        channel, post = self._post(group, tensor, [tensor])
        form = _form(tensor)
        if (share := self._moved_share(tensor, post)) is not None:
            return [(output, share) for output in outputs]
        if not channel:
            return []
        told = self._imbalance.of_peers(tensor, group.size)
        return [
            (output, lambda rank=rank: self._told(group, channel, rank, form, post, told))
            for rank, output in enumerate(outputs)
        ]

    def _reduce_scatter(self, group: _Group, given: Kwargs) -> list[Any]:
        output, tensor = given["output_tensor"], given["input_tensor"]
        whole = self._reduced(group, tensor)

        def own() -> Values:
            values = whole()
            return None if values is None else values.reshape(group.size, -1)[group.rank]

        return [(output, own)]

    def _all_to_all(self, group: _Group, given: Kwargs) -> list[Any]:
        output, tensor = given["output"], given["input"]
        if given["output_split_sizes"] or given["input_split_sizes"]:
            return []  # of sizes that differ between ranks
        channel, post = self._post(group, tensor, [tensor])
        form = _form(tensor)
        if (share := self._moved_share(tensor, post)) is not None:
            return [(output, share)]
        if not channel:
            return []

        told = self._imbalance.of_peers(tensor, group.size)

        def own() -> Values:
            parts = self._parts(group, channel, form, post, told)
            return (
                None
                if parts is None
                else torch.cat([part.reshape(group.size, -1)[group.rank] for part in parts])
            )

        return [(output, own)]

    def _scatter(self, group: _Group, given: Kwargs) -> list[Any]:
        (output,), root = given["output_tensors"], int(given["root_rank"])
        inputs = given["input_tensors"][0] if group.rank == root else [output] * group.size
        channel, post = self._post(group, output, inputs)
        form = _form(output)
        if not channel:
            return []
        return [(output, lambda: self._of_root(group, channel, root, form, post, group.size)[group.rank])]

    def _send(self, group: _Group, given: Kwargs) -> list[Any]:
        (tensor,) = given["tensors"]
        self._post(group, tensor, [tensor], between=(group.rank, int(given["dst"])))
        return []

    def _receive(self, group: _Group, given: Kwargs) -> list[Any]:
        (tensor,), source = given["tensors"], int(given["src"])
        channel = self._channel(group, tensor, (source, group.rank))
        form = _form(tensor)
        if not channel or not group.reaches(source):
            return []
        return [(tensor, lambda: self._of(group, channel, source, form, [])[0])]

    # Parts of the above.

    def _gathered(self, group: _Group, output: torch.Tensor, tensor: torch.Tensor) -> list[Any]:
        channel, post = self._post(group, tensor, [tensor])
        form = _form(tensor)
        if (share := self._moved_share(tensor, post)) is not None:
            return [(output, share)]
        if not channel:
            return []

        told = self._imbalance.of_peers(tensor, group.size)

        def all_of_them() -> Values:
            parts = self._parts(group, channel, form, post, told)
            return None if parts is None else torch.cat([part.flatten() for part in parts])

        return [(output, all_of_them)]

    def _reduced(self, group: _Group, tensor: torch.Tensor) -> Callable[[], Values]:
        channel, post = self._post(group, tensor, [tensor])
        form = _form(tensor)
        operation = _operation()

        def reduced() -> Values:
            if not channel or operation is None or post[0] is None:
                return None
            parts = self._parts(group, channel, form, post)
            return None if parts is None else operation(parts)

        return reduced

    def _channel(self, group: _Group, tensor: torch.Tensor, between: tuple[int, int] | None = None) -> str:
        """Return the name of the next message; empty where it is too large, which holds for all ranks."""
        if tensor.numel() * tensor.element_size() > _MOST_BYTES or tensor.layout is not torch.strided:
            return ""
        channel = f"{group.name}/{'all' if between is None else f'{between[0]}-{between[1]}'}"
        self._sent[channel] += 1
        return f"{_PREFIX}/{channel}/{self._sent[channel]}"

    def _post(
        self,
        group: _Group,
        like: torch.Tensor,
        tensors: list[torch.Tensor],
        between: tuple[int, int] | None = None,
    ) -> tuple[str, list[Values]]:
        """Tell the peers what this rank puts in; return the name of the channel and what was sent."""
        channel = self._channel(group, like, between)
        if not channel:
            return "", [None]
        post = [self._now(tensor) for tensor in tensors]
        if group.store is not None:
            known = all(values is not None for values in post)
            content = b"".join(_bytes(values) for values in post if values is not None) if known else b""
            group.store.set(f"{channel}/{group.rank}", (b"1" if known else b"0") + content)
        return channel, post

    def _moved_share(self, tensor: torch.Tensor, post: list[Values]) -> float | None:
        """Return the share that is true of a mask (routes to experts) whose values are unknown, or too many
        to tell the peers; None for anything else. Peers put in as much as this rank."""
        if post[0] is not None or not self._contents.is_fake(tensor):
            return None
        if tensor.dtype == torch.bool and (values := self._contents.tensor(tensor)) is not None:
            return float(values.count_nonzero() / max(values.numel(), 1))
        return self._contents.share(tensor) if self._contents.has_share(tensor) else None

    def _now(self, tensor: torch.Tensor) -> Values:
        if not self._contents.is_fake(tensor):
            return tensor.clone()
        values = self._contents.tensor(tensor)
        return None if values is None else values.clone()

    def _parts(
        self, group: _Group, channel: str, form: _Form, own: list[Values], told: Told | None = None
    ) -> list[torch.Tensor] | None:
        """Return what each rank put in; None where one does not know it."""
        parts = [self._told(group, channel, rank, form, own, told) for rank in range(group.size)]
        known = [part for part in parts if part is not None]
        return known if len(known) == len(parts) else None

    def _told(
        self, group: _Group, channel: str, rank: int, form: _Form, own: list[Values], told: Told | None
    ) -> Values:
        """Return what a rank put in; ``told`` changes what others did."""
        (values,) = self._of(group, channel, rank, form, own)
        return values if values is None or told is None or rank == group.rank else told(values)

    def _of_root(
        self, group: _Group, channel: str, root: int, form: _Form, own: list[Values], count: int = 1
    ) -> list[Values]:
        """Return what the root rank put in; a guess if that rank is not a real process."""
        if not group.reaches(root) and root != group.rank:
            group.want(root)
            self._reads.unknown("numbers", "broadcast", 0)
        return self._of(group, channel, root, form, own, count)

    def _of(
        self,
        group: _Group,
        channel: str,
        rank: int,
        form: _Form,
        own: list[Values],
        count: int = 1,
    ) -> list[Values]:
        """Return what a rank put in."""
        if rank == group.rank and own:
            return own
        if group.store is None or not group.reaches(rank):
            return own or [None] * count
        key = f"{channel}/{rank}"
        try:
            group.store.wait([key], _PATIENCE)
            content = bytes(group.store.get(key))
        except RuntimeError:  # a peer that came later, or not at all
            self._assume(
                "values of another rank did not arrive in time and are unknown: the ranks run different "
                "code, or one has ended"
            )
            return [None] * count
        if content[:1] == b"0":
            return [None] * count
        values = torch.frombuffer(bytearray(content[1:]), dtype=form.dtype)
        return [part.reshape(form.size) for part in values.chunk(count)]


class RunningPeers:
    """The ranks that run of a job most of whose ranks do not.

    Args:
        ranks: Their global ranks.
        file: Where they meet.
        want: Takes ranks that do not run and have something to say.
    """

    def __init__(self, ranks: frozenset[int], file: Path, want: Callable[[set[int]], None]) -> None:
        self.want = want
        self._ranks = ranks
        self._file = file

    @classmethod
    def of(cls, settings: Settings) -> RunningPeers | None:
        """Return the ranks that run of the job of a capture; None where all do."""
        if settings.world is None:
            return None
        return cls(frozenset(settings.world.ranks), settings.workspace / "values", settings.want_ranks)

    @functools.cached_property
    def store(self) -> Any:
        """Reaches the ranks that run."""
        return torch._C._distributed_c10d.FileStore(str(self._file), -1)

    def places_in(self, places: Mapping[int, int]) -> frozenset[int]:
        """Return the group ranks of those that run; ``places`` has the group rank of each global rank."""
        return frozenset(places[rank] for rank in self._ranks if rank in places)


class _Form(NamedTuple):
    """The form of a tensor that is sent; waiting for it must not keep the tensor itself alive."""

    dtype: torch.dtype
    size: torch.Size


def _form(tensor: torch.Tensor) -> _Form:
    return _Form(tensor.dtype, tensor.size())


class _Group:
    """A process group as this rank sees it.

    Attributes:
        store: Reaches the peers; None if they are not real processes.
    """

    def __init__(self, boxed: Any, running: RunningPeers | None) -> None:
        from torch.distributed import distributed_c10d as c10d

        group = torch.distributed.ProcessGroup.unbox(boxed)
        self.rank, self.size, self.name = group.rank(), group.size(), str(group.group_name)
        backend, store = c10d._world.pg_map.get(group, ("", None))
        self.store = None if self.size == 1 or backend == "fake" else store
        self._running = running
        self._places = {} if running is None else c10d._world.pg_group_ranks[group]
        self._reached = None if running is None else running.places_in(self._places)
        if running is not None:
            self.store = running.store if len(self._reached or ()) > 1 else None

    def want(self, rank: int) -> None:
        """Note that a rank of the group which does not run has something to say."""
        if self._running is not None:
            self._running.want({number for number, place in self._places.items() if place == rank})

    def reaches(self, rank: int) -> bool:
        """Return whether a rank of the group is a process that takes part."""
        return self.store is not None and (self._reached is None or rank in self._reached)


def _is_group(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type())


def _bytes(values: torch.Tensor) -> bytes:
    # One number that stands for all has strides of 0, which ``contiguous`` leaves to a single element.
    plain = values.clone(memory_format=torch.contiguous_format)
    return bytes(plain.view(-1).view(torch.uint8).numpy())


# The operator gets the reduction as an object that Python cannot inspect, so it is noted before.
_REDUCING = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "_reduce_scatter_base",
    "reduce_scatter_single",  # since torch 2.13
)


class _Reduction(threading.local):
    """The reduction of the collective that this thread is about to call; None if unknown."""

    by: Any = None


_reduction = _Reduction()


def note_reductions() -> None:
    """Note the reduction that process groups are asked for, before the operator is called."""
    if torch.distributed.is_available():
        group = torch.distributed.ProcessGroup
        for name in _REDUCING:
            if hasattr(group, name):
                setattr(group, name, _noted(getattr(group, name)))


def _noted(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = (getattr(a, "reduceOp", a) for a in (*args[1:], *kwargs.values()))
        _reduction.by = next((op for op in given if isinstance(op, _reduce_ops())), None)
        try:
            return method(*args, **kwargs)
        finally:
            _reduction.by = None

    return call


def _reduce_ops() -> tuple[type, ...]:
    return (torch.distributed.ReduceOp, torch.distributed.ReduceOp.RedOpType)


def _operation() -> Callable[[list[torch.Tensor]], torch.Tensor] | None:
    """Return the function that combines the ranks' values; None for unknown reductions."""
    kinds = torch.distributed.ReduceOp.RedOpType
    ways: dict[Any, Callable[[list[torch.Tensor]], torch.Tensor]] = {
        kinds.SUM: lambda parts: reduce(torch.add, parts),
        kinds.AVG: lambda parts: reduce(torch.add, parts) / len(parts),
        kinds.PRODUCT: lambda parts: reduce(torch.mul, parts),
        kinds.MIN: lambda parts: reduce(torch.minimum, parts),
        kinds.MAX: lambda parts: reduce(torch.maximum, parts),
        kinds.BAND: lambda parts: reduce(torch.bitwise_and, parts),
        kinds.BOR: lambda parts: reduce(torch.bitwise_or, parts),
        kinds.BXOR: lambda parts: reduce(torch.bitwise_xor, parts),
    }
    return next((way for kind, way in ways.items() if _reduction.by == kind), None)
