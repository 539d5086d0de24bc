"""A device for dry runs: the host computes, and an allocator that never reuses anything is counted."""

from __future__ import annotations

import time
import weakref
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from xmem_measure.history import History, Mark
from xmem_measure.meter import Usage

_GRAIN = 512
_PAGE = 2 << 20


class FakeMeter:
    """Counts the storages that operators leave behind on the host. Its figures mean nothing."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._cap_bytes = 1 << 62
        self._next_address = 1 << 40
        self._history = History()
        self._allocated = self._max_allocated = self._reserved = self._max_reserved = 0
        self._allocations = self._frees = self._ooms = 0

    def open(self) -> None:
        torch.set_num_threads(1)

    def watching(self) -> AbstractContextManager[Any]:
        return _Watch(self)

    def limit(self, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes

    def start_history(self) -> None:
        self._history = History()

    def history(self) -> History:
        return self._history

    def mark(self) -> Mark:
        return Mark(self._allocations, self._frees)

    def usage(self) -> Usage:
        usage = Usage(self._allocated, self._reserved, self._max_allocated, self._max_reserved)
        self._max_allocated, self._max_reserved = self._allocated, self._reserved
        return usage

    def used_bytes(self) -> int:
        return self._reserved

    def statistics(self) -> dict[str, int]:
        return {"num_alloc_retries": 0, "num_ooms": self._ooms}

    def allocate(self, storage: torch.UntypedStorage) -> None:
        size = -(-storage.nbytes() // _GRAIN) * _GRAIN
        grown = max(0, -(-(self._allocated + size) // _PAGE) * _PAGE - self._reserved)
        if self._reserved + grown > self._cap_bytes:
            self._ooms += 1
            self._record("oom", self._cap_bytes - self._reserved, size)
            raise torch.OutOfMemoryError("the dry run is out of memory")
        address = self._next_address
        self._next_address += size
        if grown:
            self._record("segment_alloc", address, grown)
        self._record("alloc", address, storage.nbytes())
        self._allocations += 1
        self._allocated += size
        self._reserved += grown
        self._max_allocated = max(self._max_allocated, self._allocated)
        self._max_reserved = max(self._max_reserved, self._reserved)
        weakref.finalize(storage, self._free, address, size).atexit = False

    def _free(self, address: int, size: int) -> None:
        self._record("free_requested", address, size)
        self._record("free_completed", address, size)
        self._frees += 1
        self._allocated -= size

    def _record(self, action: str, address: int, size: int) -> None:
        self._history.append(action, address, size, 0, time.time_ns() // 1000)


class _Watch(TorchDispatchMode):
    def __init__(self, meter: FakeMeter) -> None:
        super().__init__()
        self._meter = meter
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                if storage.nbytes() and storage not in self._known:
                    self._known.add(storage)
                    self._meter.allocate(storage)
        return result
