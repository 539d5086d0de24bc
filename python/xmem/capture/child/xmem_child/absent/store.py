"""The store of a job, for a process whose peers do not run: nobody else writes, and nothing is waited for."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

# Keys of a communicator's number: its place among those of its group, two ranks, or one of many roots.
_NCCL_ID = re.compile(r"(^|/)(\d+(:\d+)?|UniqueNCCLID:\d+)$")
_NCCL_ID_BYTES = 128
# Keys of what a rank tells the others of its symmetric memory (StoreExchange, CUDASymmetricMemoryUtils.hpp):
# the number of the exchange, and its rank.
_SYMMETRIC_MEMORY = re.compile(r"((?:^|/)CUDASymmetricMemory/\d+)/\d+$")


class _OwnStore(dist.Store):  # type: ignore[misc]
    """A store that one process has for itself, as if its peers had written theirs.

    Attributes:
        tell_number: Takes the key and the number of a communicator of NCCL.
    """

    host, port = "127.0.0.1", 29500

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, bytes] = {}
        self._own_part: dict[str, bytes] = {}  # of the exchanges in which each rank has a key
        self.tell_number: Callable[[str, bytes], None] = lambda _key, _number: None

    def set(self, key: str, value: str | bytes) -> None:
        self._kept[key] = value.encode() if isinstance(value, str) else bytes(value)
        if exchange := _SYMMETRIC_MEMORY.search(key):
            self._own_part[exchange[1]] = self._kept[key]
        elif _NCCL_ID.search(key):
            self.tell_number(key, self._kept[key])

    def get(self, key: str) -> bytes:
        if exchange := _SYMMETRIC_MEMORY.search(key):
            return self._own_part.get(exchange[1], b"")
        if key not in self._kept and _NCCL_ID.search(key):
            self.set(key, hashlib.shake_128(key.encode()).digest(_NCCL_ID_BYTES))
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

    def clone(self) -> _OwnStore:
        return self

    def has_extended_api(self) -> bool:
        return True


@functools.cache
def _the_store() -> _OwnStore:
    return _OwnStore()


def own_store(*_: Any, **__: Any) -> _OwnStore:
    """Return the store of this process, whatever store was asked for."""
    return _the_store()


def own_rendezvous(
    _url: str, rank: int = -1, world_size: int = -1, **_named: Any
) -> Iterator[tuple[Any, int, int]]:
    """Stand in for ``torch.distributed.rendezvous.rendezvous``: give the store, the rank and the number of
    ranks."""
    own = int(os.environ["RANK"]) if rank < 0 else rank
    yield own_store(), own, int(os.environ["WORLD_SIZE"]) if world_size < 0 else world_size
