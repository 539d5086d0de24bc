"""Issues requests to the caching allocator of torch and writes what it says after each of them.

Runs inside a Python with a CUDA build of torch, on the phantom GPU: standard library and torch only. The
files that it reads and writes are those of `real_allocator`. Usage: ``drive_torch.py FOLDER``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ALLOC, FREE, EMPTY_CACHE, RECORD_STREAM, BEGIN_POOL = range(5)
END_POOL, RELEASE_POOL, RETAIN_POOL, EMPTY_POOL, USE_POOL_ON_OOM, FORBID_POOL_SPLIT = range(6, 12)
NOWHERE = -1
FIELDS = ("current", "peak", "allocated", "freed")


def main(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    torch.cuda.init()
    if plan["memory_fraction"] is not None:
        torch.cuda.set_per_process_memory_fraction(plan["memory_fraction"])
    memory = Tensors(plan["streams"]) if plan["tensors"] else RawMemory(plan["streams"])
    known = known_counters(plan["counters"])
    pools = Pools()
    snapshots = drive(folder, plan, memory, pools, counter_reader(known))
    answer = {
        "torch": torch.__version__,
        "counters": known,
        "streams": memory.handles,
        "snapshots": snapshots,
    }
    (folder / "answer.json").write_text(json.dumps(answer))
    os._exit(0)  # pools that are in use cannot be torn down: PyTorch fails at that


def drive(
    folder: Path, plan: dict[str, Any], memory: Any, pools: Pools, read: Callable[[], Any]
) -> dict[int, Any]:
    """Issue all requests; counters go to a file a row a request, addresses a number a block."""
    kinds, blocks = column(folder / "kind"), column(folder / "block")
    size, stream = column(folder / "size_bytes"), column(folder / "stream")
    address = array("q", [NOWHERE]) * len(size)
    counters = array("q")
    snapshots = {}
    looks = set(plan["look_after"])
    pools.read_options(kinds, blocks)
    for request, (kind, block) in enumerate(zip(kinds, blocks, strict=True)):
        if kind == ALLOC:
            with contextlib.suppress(torch.OutOfMemoryError):
                address[block] = memory.allocate(block, size[block], stream[block])
        elif kind == FREE:
            if address[block] != NOWHERE:
                memory.free(block)
        elif kind == RECORD_STREAM:
            if address[block] != NOWHERE:
                memory.record_stream(block)
        elif kind == EMPTY_CACHE:
            torch.cuda.empty_cache()
        else:
            pools.call(kind, block)
        counters.extend(read())
        if request in looks:
            snapshots[request] = snapshot(pools)
    (folder / "address").write_bytes(address.tobytes())
    (folder / "counters").write_bytes(counters.tobytes())
    return snapshots


class Pools:
    """Private pools by number: those of a ``MemPool``, which begin by being retained, and those of graphs."""

    def __init__(self) -> None:
        self._id: dict[int, tuple[int, int]] = {}
        self._object: dict[int, torch.cuda.MemPool] = {}
        self._options: dict[int, dict[str, bool]] = {}
        self._begin = getattr(
            torch._C, "_cuda_beginAllocateCurrentThreadToPool", torch._C._cuda_beginAllocateToPool
        )
        self._end = (
            getattr(torch._C, "_cuda_endAllocateToPool", None)
            or torch._C._cuda_endAllocateCurrentStreamToPool
        )

    def read_options(self, kinds: array[int], pools: array[int]) -> None:
        """What a ``MemPool`` is told when it is made; the requests that say it come right after it."""
        for kind, pool in zip(kinds, pools, strict=True):
            if kind == USE_POOL_ON_OOM:
                self._options.setdefault(pool, {})["use_on_oom"] = True
            elif kind == FORBID_POOL_SPLIT:
                self._options.setdefault(pool, {})["no_split"] = True

    def call(self, kind: int, pool: int) -> None:
        """Make the call; a ``MemPool`` is released and emptied at once, when it is deleted."""
        if kind == RETAIN_POOL:
            self._object[pool] = torch.cuda.MemPool(**self._options.get(pool, {}))
            self._id[pool] = self._object[pool].id
        elif kind == BEGIN_POOL:
            self._begin(0, self._id.setdefault(pool, (1 << 20 | pool, 0)))
        elif kind == END_POOL:
            self._end(0, self._id[pool])
        elif kind == RELEASE_POOL and not self.is_last_of_object(pool):
            torch._C._cuda_releasePool(0, self._id[pool])
        elif kind == EMPTY_POOL:
            del self._object[pool]

    def is_last_of_object(self, pool: int) -> bool:
        return pool in self._object and self._object[pool].use_count() == 1

    def number(self, mempool_id: tuple[int, int]) -> int:
        """The number of a pool, 0 for the default pool."""
        return {found: number for number, found in self._id.items()}.get(tuple(mempool_id), 0)


class RawMemory:
    """Blocks by their exact size, without tensors."""

    def __init__(self, streams: int) -> None:
        self._streams = [torch.cuda.Stream() for _ in range(streams - 1)]
        self.handles = [0, *(stream.cuda_stream for stream in self._streams)]
        self._address: dict[int, int] = {}

    def allocate(self, block: int, size: int, stream: int) -> int:
        address = torch._C._cuda_cudaCachingAllocator_raw_alloc(size, self.handles[stream])
        self._address[block] = address
        return address

    def free(self, block: int) -> None:
        torch._C._cuda_cudaCachingAllocator_raw_delete(self._address.pop(block))


class Tensors:
    """Blocks of tensors on streams of the device, and one more stream that uses blocks of the others."""

    def __init__(self, streams: int) -> None:
        self._streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(streams - 1))]
        self._side = torch.cuda.Stream()
        self.handles = [stream.cuda_stream for stream in self._streams]
        self._live: dict[int, torch.Tensor] = {}
        self._current = 0

    def allocate(self, block: int, size: int, stream: int) -> int:
        if stream != self._current:
            torch.cuda.set_stream(self._streams[stream])
            self._current = stream
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        self._live[block] = tensor
        return tensor.data_ptr()

    def free(self, block: int) -> None:
        del self._live[block]

    def record_stream(self, block: int) -> None:
        self._live[block].record_stream(self._side)


def known_counters(names: list[str]) -> list[str]:
    """Those of the names that this release of torch has."""
    statistics = torch._C._cuda_memoryStats(0)
    known = []
    for name in names:
        at: Any = statistics
        for key in name.split("."):
            at = at.get(key) if isinstance(at, dict) else None
        if at is not None:
            known.append(name)
    return known


def counter_reader(names: list[str]) -> Callable[[], Any]:
    """A function that reads the counters of these names, compiled, for it runs after every request."""
    terms = []
    for name in names:
        head, _, field = name.rpartition(".")
        keys = "".join(f"[{key!r}]" for key in head.split(".")) if head else ""
        if field not in FIELDS:
            terms.append(f"s[{name!r}]")
        elif field == FIELDS[0]:
            terms.append(f"*s{keys}.values()")
    statistics = torch._C._cuda_memoryStats(0)
    if tuple(statistics["allocation"]["all"]) != FIELDS:
        raise RuntimeError(f"torch orders the fields of a gauge as {tuple(statistics['allocation']['all'])}")
    of = eval(f"lambda s: ({', '.join(terms)},)")
    return lambda: of(torch._C._cuda_memoryStats(0))


def snapshot(pools: Pools) -> list[Any]:
    """Segments by address: address, size, stream, kind, expandable or not, private pool, and the blocks."""
    return [
        [
            segment["address"],
            segment["total_size"],
            segment["stream"],
            segment["segment_type"],
            segment["is_expandable"],
            pools.number(segment["segment_pool_id"]),
            [
                [block["address"], block["size"], block["requested_size"], block["state"]]
                for block in segment["blocks"]
            ],
        ]
        for segment in torch.cuda.memory_snapshot()
    ]


def column(path: Path) -> array[int]:
    numbers = array("q")
    numbers.frombytes(path.read_bytes())
    return numbers


if __name__ == "__main__":
    main(Path(sys.argv[1]))
