"""Users of the allocator's private pools: CUDA graphs, ``torch.cuda.MemPool``, and the graph trees of
torch.compile. The allocator's history shows what is in a pool, not who keeps it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .allocator_history import PoolId

_DEFAULT_POOL = (0, 0)
_HISTORY_NAMES_POOLS = (2, 9)


class MarkCall(Protocol):
    """Takes a call: device, position among its requests, kind, and the number of a pool or a checkpoint."""

    def __call__(self, device: int, position: int, kind: str, number: int) -> None:
        """Take the call."""


class PoolNumbers:
    """The private pools of all devices: a number from 1 for each id, and the pool of each segment."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, PoolId], int] = {}
        self._segments: dict[int, list[tuple[int, int, int, PoolId]]] = {}
        release = tuple(int(part) for part in torch.__version__.split(".")[:2])
        self.named_by_history = release >= _HISTORY_NAMES_POOLS

    def number(self, device: int, pool: PoolId) -> int:
        """Return the number of a pool, 0 for the default pool."""
        pool = int(pool[0]), int(pool[1])
        if pool == _DEFAULT_POOL:
            return 0
        return self._numbers.setdefault((device, pool), len(self._numbers) + 1)

    def look(self, position: Callable[[int], int], segments: list[dict[str, Any]]) -> None:
        """Remember the pools of the current segments, for histories that do not name them."""
        if self.named_by_history:
            return
        for segment in segments:
            pool = tuple(segment["segment_pool_id"])
            if pool != _DEFAULT_POOL:
                device, begin = segment["device"], segment["address"]
                seen = self._segments.setdefault(device, [])
                seen.append((position(device), begin, begin + segment["total_size"], pool))

    def of_segment(self, device: int, address: int, position: int, born: int, until: int) -> PoolId:
        """Return the pool of the segment around an address, as seen next from a position or else last before
        it.

        Args:
            device: Index of the device.
            address: An address in the segment.
            position: Number of requests before the one in question.
            born: Position from which the segment existed.
            until: Position at which the segment went away.
        """
        seen = [
            ((seen_at < position, abs(seen_at - position)), pool)
            for seen_at, begin, end, pool in self._segments.get(device, ())
            if begin <= address < end and born <= seen_at <= until
        ]
        return min(seen)[1] if seen else _DEFAULT_POOL


@dataclass
class _Use:
    users: int = 0
    scopes: int = 0


class PoolCalls:
    """Notes the calls that matter for when the memory of a pool may go back to the device.

    Args:
        numbers: Numbers of the pools.
        position: Gives the number of requests of a device so far.
        mark: Takes each call.
    """

    def __init__(self, numbers: PoolNumbers, position: Callable[[int], int], mark: MarkCall) -> None:
        self._numbers = numbers
        self._position = position
        self._mark_at = mark
        self._uses: dict[tuple[int, int], _Use] = {}
        self._graph_ends: weakref.WeakKeyDictionary[Any, weakref.finalize[..., Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._states: dict[int, tuple[object, int]] = {}  # by id, kept so that none is used twice
        self._checkpoints: dict[int, int] = {}  # how many of each device
        self._looked_after: dict[int, int] = {}  # segments that a device had ever made

    def install(self) -> None:
        """Follow the calls from now on."""
        self._follow_scopes()
        self._follow_graphs()
        self._follow_pool_objects()
        self._follow_checkpoints()

    # Changes to the users of a pool. PyTorch refuses calls that do not fit together.

    def _begin(
        self, device: int, pool: PoolId, kind: str = "begin_pool", position: int | None = None
    ) -> None:
        use = self._use(device, pool)
        use.users += 1
        use.scopes += 1
        self._mark(device, pool, kind if use.scopes == 1 else "retain_pool", position)

    def _end(self, device: int, pool: PoolId, position: int | None = None) -> None:
        use = self._use(device, pool)
        if use.scopes > 0:
            use.scopes -= 1
            if use.scopes == 0:
                self._mark(device, pool, "end_pool", position)
            self._look_at_segments(device)

    def _release(self, device: int, pool: PoolId) -> None:
        use = self._use(device, pool)
        if use.users == 0:
            return
        use.users -= 1
        self._mark(device, pool, "release_pool")

    def _look_at_segments(self, device: int) -> None:
        """Look at a device's segments: a pool's are made in its scopes, and may be gone once it has no
        users."""
        if self._numbers.named_by_history:
            return
        made = torch._C._cuda_memoryStats(device)["num_device_alloc"]
        if made != self._looked_after.get(device):
            self._looked_after[device] = made
            self._numbers.look(self._position, torch.cuda.memory_snapshot())

    def _use(self, device: int, pool: PoolId) -> _Use:
        return self._uses.setdefault((device, self._numbers.number(device, pool)), _Use())

    def _mark(self, device: int, pool: PoolId, kind: str, position: int | None = None) -> None:
        at = self._position(device) if position is None else position
        self._mark_at(device, at, kind, self._numbers.number(device, pool))

    # Where they happen.

    def _follow_scopes(self) -> None:
        for name in (
            "_cuda_beginAllocateCurrentThreadToPool",
            "_cuda_beginAllocateCurrentStreamToPool",
            "_cuda_beginAllocateToPool",
        ):
            follow(name, after=self._begin)
        for name in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"):
            follow(name, before=self._end)
        follow("_cuda_releasePool", before=self._release)

    def _follow_graphs(self) -> None:
        graph = torch._C._CUDAGraph
        begin, end, reset = graph.capture_begin, graph.capture_end, graph.reset

        @functools.wraps(begin)
        def capture_begin(self_: Any, pool: PoolId | None = None, *args: Any, **options: Any) -> Any:
            # A graph does not tell the pool that it makes before its capture has ended.
            pool = torch.cuda.graph_pool_handle() if pool is None else pool
            device = torch.cuda.current_device()
            position = self._position(device)
            done = begin(self_, pool, *args, **options)
            self._begin(device, pool, "begin_capture", position)
            return done

        @functools.wraps(end)
        def capture_end(self_: Any, *args: Any, **options: Any) -> Any:
            device = torch.cuda.current_device()
            position = self._position(device)
            done = end(self_, *args, **options)
            self._end(device, self_.pool(), position)
            gone = weakref.finalize(self_, self._release, device, self_.pool())
            gone.atexit = False
            self._graph_ends[self_] = gone
            return done

        @functools.wraps(reset)
        def reset_graph(self_: Any) -> Any:
            gone = self._graph_ends.pop(self_, None)
            if gone is not None:
                gone()
            return reset(self_)

        graph.capture_begin, graph.capture_end, graph.reset = capture_begin, capture_end, reset_graph

    def _follow_pool_objects(self) -> None:
        made = torch.cuda.MemPool.__init__

        @functools.wraps(made)
        def make(self_: Any, *args: Any, **options: Any) -> None:
            made(self_, *args, **options)
            if not torch.cuda.is_initialized():
                return
            device = torch.cuda.current_device()
            self._use(device, self_.id).users += 1
            self._mark(device, self_.id, "retain_pool")
            given = dict(zip(("allocator", "use_on_oom", "no_split"), args, strict=False)) | options
            if given.get("use_on_oom"):
                self._mark(device, self_.id, "use_pool_on_oom")
            if given.get("no_split"):
                self._mark(device, self_.id, "forbid_pool_split")
            weakref.finalize(self_, self._pool_object_ends, device, self_.id).atexit = False

        torch.cuda.MemPool.__init__ = make

    def _pool_object_ends(self, device: int, pool: PoolId) -> None:
        self._release(device, pool)
        self._mark(device, pool, "empty_pool")

    def _follow_checkpoints(self) -> None:
        take = torch._C._cuda_getCheckpointState
        restore = torch._C._cuda_setCheckpointPoolState

        @functools.wraps(take)
        def get_checkpoint(device: int, pool: PoolId) -> Any:
            state = take(device, pool)
            number = self._checkpoints.get(device, 0)
            self._checkpoints[device] = number + 1
            self._states[id(state)] = state, number
            self._mark(device, pool, "checkpoint_pool")
            return state

        @functools.wraps(restore)
        def set_checkpoint(device: int, state: Any, *args: Any) -> Any:
            _, number = self._states[id(state)]
            self._mark_at(device, self._position(device), "begin_restore", number)
            done = restore(device, state, *args)
            self._mark_at(device, self._position(device), "restore_pool", number)
            return done

        torch._C._cuda_getCheckpointState = get_checkpoint
        torch._C._cuda_setCheckpointPoolState = set_checkpoint


def follow(
    name: str,
    *,
    before: Callable[..., object] | None = None,
    after: Callable[..., object] | None = None,
) -> None:
    """Run something before or after each call of a function of ``torch._C``, if this release has it."""
    function = getattr(torch._C, name, None)
    if function is None:
        return

    @functools.wraps(function)
    def followed(*args: Any, **options: Any) -> Any:
        if before is not None:
            before(*args, **options)
        done = function(*args, **options)
        if after is not None:
            after(*args, **options)
        return done

    setattr(torch._C, name, followed)
    if hasattr(torch.cuda.memory, name):  # which imports some by name
        setattr(torch.cuda.memory, name, followed)
