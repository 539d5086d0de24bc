"""Random requests that visit every rule of the allocator, and random settings for it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from oracle.real_allocator import CONTEXT_BYTES, Setting
from xmem.simulation.replay import RequestKind, Requests

MIB = 1 << 20

# Around 512 B and the borders between pools and kinds of segments.
BORDERS = (1, 511, 512, 513, MIB - 1, MIB, MIB + 1, 2 * MIB, 9 * MIB, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB)
BORDERS += (10 * MIB + 1, 11 * MIB, 12 * MIB, 19 * MIB, 20 * MIB - 1, 20 * MIB, 20 * MIB + 1, 21 * MIB)


def random_setting(seed: int, release: tuple[int, int], *, expandable: bool | None = None) -> Setting:
    """A setting that the release accepts.

    `expandable`: with or without expandable segments; None for either.
    """
    rng = random.Random(f"setting {seed}")
    parts = []
    large_mib = 20
    if expandable is None:
        expandable = rng.random() < 0.35
    if release >= (2, 10) and rng.random() < 0.3:
        large_mib = rng.choice([12, 16, 20, 30, 50, 64] if expandable else [11, 15, 20, 30, 50, 64])
        parts.append(f"large_segment_size_mb:{large_mib}")
    if rng.random() < 0.4:
        least = large_mib if release >= (2, 9) else large_mib + 1
        parts.append(f"max_split_size_mb:{max(rng.choice([0, 21, 32, 50, 64, 128, 200, 512]), least)}")
    if rng.random() < 0.3:
        parts.append(f"max_non_split_rounding_mb:{large_mib + rng.choice([1, 2, 5, 20, 100, 1000])}")
    if rng.random() < 0.5:
        parts.append(f"roundup_power2_divisions:{_random_divisions(rng)}")
    fraction = rng.choice([None, None, 0.3, 0.5, 0.77, 0.95, 1.0])
    if (fraction is not None and rng.random() < 0.7) or rng.random() < 0.05:
        parts.append(f"garbage_collection_threshold:{rng.choice([0.1, 0.3, 0.5, 0.6, 0.8, 0.95])}")
    if expandable:
        parts.append("expandable_segments:True")
    if release >= (2, 12) and rng.random() < 0.15:
        parts.append("throw_on_cudamalloc_oom:True")
    if release >= (2, 9) and fraction is not None and rng.random() < 0.5:
        parts.append(f"per_process_memory_fraction:{fraction}")
        fraction = None
    if rng.random() < 0.1:
        parts.append("release_lock_on_cudamalloc:True")
    rng.shuffle(parts)
    capacity = rng.choice([200 * MIB, 513 * MIB, 1025 * MIB, 4 << 30, 12622168064, 24 << 30])
    tensors = rng.random() < 0.3
    pools = rng.random() < 0.6
    return Setting(",".join(parts), fraction, CONTEXT_BYTES + capacity, tensors=tensors, pools=pools)


def random_requests(seed: int, count: int, setting: Setting, release: tuple[int, int]) -> Requests:
    """Requests in phases: each has its sizes, and a level of memory in use around which it hovers.

    Private pools as the release can take them: what it fails at, or leaves to chance, does not occur.
    """
    return _History(random.Random(f"requests {seed}"), setting, release).make(count)


@dataclass
class _Pool:
    """A private pool in use: of a ``MemPool``, or of captured graphs."""

    number: int
    of_object: bool
    used_on_oom: bool = False
    users: int = 0
    is_open: bool = False
    live: int = 0


class _History:
    """Requests in the making, and the blocks that would be alive if none failed."""

    def __init__(self, rng: random.Random, setting: Setting, release: tuple[int, int]) -> None:
        self.release = release
        self.pools: list[_Pool] = []
        self.open: list[_Pool] = []  # oldest first
        self.pools_made = 0
        self.pool_of: dict[int, _Pool] = {}  # of living blocks
        self.used_elsewhere: set[int] = set()
        self.deferred = 0  # frees that wait for the end of the open scopes
        self.rng = rng
        self.setting = setting
        self.available = setting.capacity_bytes - CONTEXT_BYTES
        self.streams = rng.choice([1, 1, 2, 4])
        self.kind: list[int] = []
        self.block: list[int] = []
        self.size: list[int] = []
        self.stream: list[int] = []
        self.live: list[int] = []
        self.live_bytes = 0

    def make(self, count: int) -> Requests:
        while len(self.kind) < count:
            self._phase(min(count - len(self.kind), self.rng.randint(20, 1000)))
        return Requests(
            np.array(self.kind, np.uint8),
            np.array(self.block, np.int32),
            np.arange(len(self.kind), dtype=np.int64),
            np.array(self.size, np.int64),
            np.array(self.stream, np.int64),
        )

    def _phase(self, length: int) -> None:
        rng = self.rng
        level = self.available * rng.choice([0.0, 0.1, 0.3, 0.6, 0.9, 1.0, 1.2])
        palette = [self._fresh_size() for _ in range(rng.randint(1, 12))]
        repeats = rng.choice([0.3, 0.8, 1.0])
        emptied = rng.choice([0.0, 0.0, 0.003, 0.05])
        newest_first = rng.random()
        used_elsewhere = rng.choice([0.0, 0.1, 0.5]) if self.setting.tensors else 0.0
        pool_calls = rng.choice([0.0, 0.01, 0.05, 0.2]) if self.setting.pools else 0.0
        stream = rng.randrange(self.streams)
        end = len(self.kind) + length
        while len(self.kind) < end:
            if rng.random() < emptied and self._may_empty():
                self._add(RequestKind.EMPTY_CACHE, -1)
            if rng.random() < pool_calls:
                self._call_pool()
            wants_less = self.live_bytes > level
            if self.live and (rng.random() < (0.7 if wants_less else 0.3) or len(self.live) > 3000):
                at = -1 if rng.random() < newest_first else rng.randrange(len(self.live))
                self._free(at)
            else:
                self._alloc(rng.choice(palette) if rng.random() < repeats else self._fresh_size(), stream)
                if rng.random() < used_elsewhere:
                    self._add(RequestKind.RECORD_STREAM, rng.choice(self.live))
                    self.used_elsewhere.add(self.block[-1])
            if rng.random() < 0.05:
                stream = rng.randrange(self.streams)

    def _fresh_size(self) -> int:
        rng = self.rng
        kind = rng.random()
        if kind < 0.25:
            return rng.choice(BORDERS)
        if kind < 0.4:
            return max(1, (1 << rng.randint(0, 28)) + rng.choice([-1, 0, 0, 1]))
        if kind < 0.6:
            return rng.randint(1, 2 * MIB)
        if kind < 0.8:
            return rng.randint(MIB, 64 * MIB)
        if kind < 0.95:
            return int(2 ** rng.uniform(0, 27))
        return max(1, int(self.available * rng.uniform(0.1, 1.02)))

    def _alloc(self, size: int, stream: int) -> None:
        self.size.append(size)
        self.stream.append(stream)
        self.live.append(len(self.size) - 1)
        self.live_bytes += size
        self._add(RequestKind.ALLOC, len(self.size) - 1)
        if self.open:
            pool = self.open[-1] if self.release >= (2, 10) else self.open[0]
            pool.live += 1
            self.pool_of[len(self.size) - 1] = pool

    def _free(self, at: int) -> None:
        block = self.live[at]
        if self.open and block in self.used_elsewhere:
            # From 2.9 on they complete in the order of addresses of objects of the process.
            if self.deferred and self.release >= (2, 9):
                return
            self.deferred += 1
        if block in self.pool_of:
            self.pool_of.pop(block).live -= 1
        self.live[at] = self.live[-1]
        self.live.pop()
        self.live_bytes -= self.size[block]
        self._add(RequestKind.FREE, block)

    def _may_empty(self) -> bool:
        return not self.open or self.release >= (2, 9)  # before, PyTorch fails while a scope is open

    def _call_pool(self) -> None:
        rng = self.rng
        choice = rng.random()
        if self.open and choice < 0.4:
            self._end_scope(rng.choice(self.open))
        elif choice < 0.6:
            closed = [pool for pool in self.pools if not pool.is_open]
            if len(self.open) < 3 and closed:
                self._begin_scope(rng.choice(closed))
        elif choice < 0.75:
            if len(self.pools) < 6:
                self._make_pool()
        else:
            releasable = [pool for pool in self.pools if self._may_release(pool)]
            if releasable:
                self._release(rng.choice(releasable))

    def _make_pool(self) -> None:
        self.pools_made += 1
        pool = _Pool(self.pools_made, of_object=self.rng.random() < 0.5)
        self.pools.append(pool)
        if not pool.of_object:
            return
        self._add(RequestKind.RETAIN_POOL, pool.number)
        pool.users = 1
        if self.release < (2, 10):
            return
        # The order of several such pools is that of a hash table.
        if self.rng.random() < 0.3 and not any(other.used_on_oom for other in self.pools):
            pool.used_on_oom = True
            self._add(RequestKind.USE_POOL_ON_OOM, pool.number)
        if self.rng.random() < 0.2:
            self._add(RequestKind.FORBID_POOL_SPLIT, pool.number)

    def _begin_scope(self, pool: _Pool) -> None:
        self._add(RequestKind.BEGIN_POOL, pool.number)
        pool.users += 1
        pool.is_open = True
        self.open.append(pool)

    def _end_scope(self, pool: _Pool) -> None:
        self._add(RequestKind.END_POOL, pool.number)
        pool.is_open = False
        self.open.remove(pool)
        if not self.open:
            self.deferred = 0
        if pool.of_object:
            self._release(pool)

    def _may_release(self, pool: _Pool) -> bool:
        if pool.is_open or pool.users == 0 or pool.used_on_oom:
            return False
        if pool.users > 1:
            return not pool.of_object
        # PyTorch counts mappings of expandable segments, not what they map: with blocks alive it loses count.
        if "expandable_segments:True" in self.setting.alloc_conf and pool.live:
            return False
        return not (pool.of_object and self.open)

    def _release(self, pool: _Pool) -> None:
        self._add(RequestKind.RELEASE_POOL, pool.number)
        pool.users -= 1
        if pool.users == 0:
            self.pools.remove(pool)
            if pool.of_object:
                self._add(RequestKind.EMPTY_POOL, pool.number)

    def _add(self, kind: RequestKind, block: int) -> None:
        self.kind.append(kind)
        self.block.append(block)


def _random_divisions(rng: random.Random) -> str:
    """A value of roundup_power2_divisions, in one of its two syntaxes."""
    if rng.random() < 0.4:
        return str(rng.choice([1, 2, 4, 8, 16, 32, 64]))
    keys = sorted(rng.sample(range(16), rng.randint(1, 5)))
    pairs = [f"{1 << key}:{rng.choice([0, 1, 2, 4, 8, 16])}" for key in keys]
    if rng.random() < 0.6:
        pairs.append(f">:{rng.choice([1, 2, 4, 8])}")
    return f"[{','.join(pairs)}]"
