"""Runs random programs and writes the history that a capture would keep, and what the allocator said.

Runs inside a Python with a CUDA build of torch, on the phantom GPU: standard library, torch, and the part of
a capture that records the allocator. Usage: ``drive_programs.py FOLDER CHILD_FOLDER``.

A program is a few dozen random steps of one process: tensors on several streams and threads, threads at once,
emptied caches, ``MemPool``s, graphs that share pools, and checkpoints of pools. Each ends with an allocation
at which all gauges are noted.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

KIB, MIB = 1 << 10, 1 << 20
GAUGES = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")
_MOST_LIVE = 60


def main(folder: Path, child: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    sys.path.insert(0, str(child))
    record_of = __import__("xmem_child.records.allocator_record", fromlist=["AllocatorRecord"])
    record = record_of.AllocatorRecord(print)
    record.install()
    torch.cuda.init()
    record.start()
    if plan["memory_fraction"] is not None:
        for device in range(plan["devices"]):
            torch.cuda.set_per_process_memory_fraction(plan["memory_fraction"], device)
    rng = random.Random(plan["seed"])
    worlds = [World(rng, device, plan["captures"], plan["pools"]) for device in range(plan["devices"])]
    seen = []
    for _ in range(plan["programs"]):
        world = rng.choice(worlds)
        with torch.cuda.device(world.device):
            world.program(rng.randint(5, 60))
            seen.append(gauges(record, world.device))
    answer = {
        "torch": torch.__version__,
        "seen": seen,
        "requests": [requests.columns() for requests in record.requests()],
    }
    (folder / "answer.json").write_text(json.dumps(answer))
    os._exit(0)  # pools that are in use cannot be torn down: PyTorch fails at that


def gauges(record: Any, device: int) -> dict[str, Any]:
    """Current values and peaks after one more allocation, which nothing can come between."""
    kept = retry(lambda: torch.empty(512, dtype=torch.uint8, device="cuda"))
    position = record._position(device)
    of = torch._C._cuda_memoryStats(device)
    values = {name: [of[name]["all"]["current"], of[name]["all"]["peak"]] for name in GAUGES}
    served = kept is not None
    return {"device": device, "position": position, "served": served, "gauges": values}


def retry(allocate: Callable[[], Any]) -> Any:
    """What was allocated, None where there was no memory for it."""
    try:
        return allocate()
    except torch.OutOfMemoryError:
        return None


class World:
    """What the programs on one device share: streams, and what lives on from one to the next."""

    def __init__(self, rng: random.Random, device: int, captures: bool, pools: bool) -> None:
        self.rng = rng
        self.device = device
        self.captures = captures
        self.uses_pools = pools
        with torch.cuda.device(device):
            self.default = torch.cuda.default_stream()
            self.streams = [self.default, *(torch.cuda.Stream() for _ in range(3))]
        self.threads = ThreadPoolExecutor(3)
        self.live: list[torch.Tensor] = []
        self.pools: list[Any] = []
        self.graphs: list[tuple[Any, list[torch.UntypedStorage]]] = []
        self.may_empty_in_scope = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)

    def program(self, steps: int) -> None:
        palette = [self.size() for _ in range(self.rng.randint(1, 6))]
        moves: list[tuple[float, Callable[[list[int]], None]]] = [
            (10, self.allocate),
            (8, self.free),
            (1.5, self.in_a_thread),
            (1, self.threads_at_once),
            (0.4, lambda _: torch.cuda.empty_cache()),
            (1, self.use_on_other_stream),
        ]
        if self.uses_pools:
            moves += [(0.8, self.pool_scope), (0.2, self.drop_pool)]
        if self.captures:
            moves += [(0.8, self.capture), (0.3, self.drop_graph), (0.4, self.go_back)]
        weights = [weight for weight, _ in moves]
        for _ in range(steps):
            self.rng.choices(moves, weights)[0][1](palette)
        if self.rng.random() < 0.3:
            self.live.clear()

    def size(self) -> int:
        rng = self.rng
        kind = rng.random()
        if kind < 0.4:
            return rng.randint(1, 2 * MIB)
        if kind < 0.7:
            return rng.randint(MIB, 12 * MIB)
        return int(2 ** rng.uniform(9, 25.5))

    def new(self, size: int) -> torch.Tensor | None:
        return retry(lambda: torch.empty(size, dtype=torch.uint8, device="cuda"))

    def allocate(self, palette: list[int]) -> None:
        if len(self.live) >= _MOST_LIVE:
            self.live.pop(0)
        size = self.rng.choice(palette) if self.rng.random() < 0.8 else self.size()
        stream = self.rng.choice(self.streams) if self.rng.random() < 0.2 else self.default
        with torch.cuda.stream(stream):
            tensor = self.new(size)
        if tensor is not None:
            self.live.append(tensor)

    def free(self, _palette: list[int]) -> None:
        if self.live:
            self.live.pop(self.rng.randrange(len(self.live)))

    def use_on_other_stream(self, _palette: list[int]) -> None:
        if self.live:
            self.rng.choice(self.live).record_stream(self.rng.choice(self.streams))

    def in_a_thread(self, palette: list[int]) -> None:
        self.threads.submit(self.on_device, lambda: self.allocate(palette)).result()

    def threads_at_once(self, palette: list[int]) -> None:
        """Each has tensors and a stream of its own; their order is the scheduler's."""
        kept: list[torch.Tensor] = []
        seeds = [self.rng.random() for _ in range(3)]
        start = threading.Barrier(3)

        def work(seed: float) -> None:
            rng = random.Random(seed)
            own: list[torch.Tensor] = []
            start.wait()
            with torch.cuda.stream(self.streams[rng.randrange(4)]):
                for _ in range(rng.randint(2, 12)):
                    if own and rng.random() < 0.45:
                        own.pop(rng.randrange(len(own)))
                        continue
                    tensor = self.new(rng.choice(palette))
                    if tensor is not None:
                        own.append(tensor)
                        if rng.random() < 0.2:
                            tensor.record_stream(self.default)
            kept.extend(own[:2])

        list(self.threads.map(lambda seed: self.on_device(lambda: work(seed)), seeds))
        self.live += kept

    def on_device(self, action: Callable[[], None]) -> None:
        with torch.cuda.device(self.device):
            action()

    def pool_scope(self, palette: list[int]) -> None:
        if not self.pools or (len(self.pools) < 3 and self.rng.random() < 0.4):
            self.pools.append(torch.cuda.MemPool())
        with torch.cuda.use_mem_pool(self.rng.choice(self.pools)):
            for _ in range(self.rng.randint(1, 8)):
                self.rng.choice([self.allocate, self.allocate, self.free])(palette)
            if self.rng.random() < 0.2:
                self.threads_at_once(palette)  # of which the scope may know nothing
            if self.rng.random() < 0.1 and self.may_empty_in_scope:
                torch.cuda.empty_cache()

    def drop_pool(self, _palette: list[int]) -> None:
        """Its tensors go first: while one lives, releases of pools of expandable segments lose count."""
        if self.pools:
            self.live.clear()
            self.pools.pop(self.rng.randrange(len(self.pools)))

    def capture(self, palette: list[int]) -> None:
        if len(self.graphs) > 4:
            self.drop_graph(palette)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        shared = self.rng.choice(self.graphs)[0].pool() if self.graphs and self.rng.random() < 0.6 else None
        held: list[torch.UntypedStorage] = []
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=shared):
                for _ in range(self.rng.randint(1, 12)):
                    if held and self.rng.random() < 0.4:
                        held.pop(self.rng.randrange(len(held)))
                    elif (tensor := self.new(self.rng.choice(palette))) is not None:
                        held.append(tensor.untyped_storage())
                        del tensor
                if self.rng.random() < 0.3 and self.live:
                    self.free(palette)
        finally:
            gc.enable()
        graph.replay()
        self.graphs.append((graph, held))

    def drop_graph(self, _palette: list[int]) -> None:
        if self.graphs:
            graph, held = self.graphs.pop(self.rng.randrange(len(self.graphs)))
            held.clear()
            if self.rng.random() < 0.5:
                graph.reset()

    def go_back(self, palette: list[int]) -> None:
        """As graph trees do: a pool is used on, then put back to what a recorded graph found."""
        if not self.graphs:
            return
        graph, held = self.rng.choice(self.graphs)
        pool = graph.pool()
        of_pool = [kept for other, kept in self.graphs if other.pool() == pool]
        try:
            state = torch._C._cuda_getCheckpointState(self.device, pool)
        except RuntimeError:  # all that is in it was given back
            return
        then = {storage.data_ptr() for kept in of_pool for storage in kept}
        more = self.use_pool(pool, palette)
        if held and self.rng.random() < 0.4:
            held.pop(self.rng.randrange(len(held)))
        stale = [storage for kept in [*of_pool, more] for storage in kept]
        # The memory of the checkpoint gets new owners, as in graph trees; nobody owns what was dropped since.
        for kept in of_pool:
            kept[:] = [self.owner(storage) for storage in kept if storage.data_ptr() in then]
        live = [storage._cdata for kept in of_pool for storage in kept]
        torch._C._cuda_setCheckpointPoolState(self.device, state, [old._cdata for old in stale], live)

    def owner(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        device = torch.device("cuda", self.device)
        return torch._C._construct_storage_from_data_pointer(storage.data_ptr(), device, storage.nbytes())

    def use_pool(self, pool: tuple[int, int], palette: list[int]) -> list[torch.UntypedStorage]:
        """Run what would be a warm-up in the pool of a graph."""
        by_stream = not hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool")
        begin = torch._C._cuda_beginAllocateCurrentStreamToPool if by_stream else None
        begin = begin or torch._C._cuda_beginAllocateCurrentThreadToPool
        end = getattr(torch._C, "_cuda_endAllocateToPool", None)
        end = end or torch._C._cuda_endAllocateCurrentStreamToPool
        made: list[torch.UntypedStorage] = []
        with torch.cuda.stream(self.streams[1]):
            begin(self.device, pool)
            for _ in range(self.rng.randint(0, 8)):
                if made and self.rng.random() < 0.4:
                    made.pop(self.rng.randrange(len(made)))
                elif (tensor := self.new(self.rng.choice(palette))) is not None:
                    made.append(tensor.untyped_storage())
                    del tensor
            end(self.device, pool)
            torch._C._cuda_releasePool(self.device, pool)
        return made


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
