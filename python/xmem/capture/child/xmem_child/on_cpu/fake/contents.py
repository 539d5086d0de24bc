"""What is known about memory of the host that nobody has written: results that were made and not computed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch

from ...values.contents import Contents, Number, is_whole, storage_of
from ...values.operators import unfollowed

_C = torch._C
_SWEEP_AT_LEAST = 1024
# The allocator of glibc takes blocks from here on from the system, and gives them back when they are freed:
# they are zeros, and unless somebody writes to them, no memory at all. By default the limit grows with what
# is freed.
_OWN_PAGES_BYTES = 1 << 17
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1


class FakeContents(Contents):
    """Facts about storages of the host whose values nobody computed; all others hold theirs.

    What is few and becomes known is written to the memory itself, which then is like any other.

    Args:
        most_elements: Limit for a tensor of floats that is computed; see ``Contents``.
    """

    def __init__(self, most_elements: int) -> None:
        super().__init__(most_elements, _NoWatch())
        # Weak references by the address of the StorageImpl, which no other storage has while one exists.
        self._fake: dict[int, int] = {}
        self._sweep_fake_at = _SWEEP_AT_LEAST
        self.is_fake = self._is_fake
        _give_large_blocks_their_own_pages()

    def _is_fake(self, tensor: torch.Tensor) -> bool:
        """Return whether nobody wrote the values of a tensor."""
        return _C._storage_address(tensor) in self._fake

    def are_few(self, elements: int, dtype: torch.dtype) -> bool:
        """Return whether so many elements may be computed."""
        return self._few(elements, dtype)

    def lose(self, tensor: torch.Tensor) -> None:
        """Note that something which nobody computed was written to a tensor."""
        address = _C._storage_address(tensor)
        if address not in self._fake:
            if len(self._fake) >= self._sweep_fake_at:
                self._sweep_fake()
            self._fake[address] = storage_of(tensor)._weak_ref()
        elif self._facts:
            super().forget(tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        """Forget what is known: something unknown was written."""
        super().forget(tensor)
        self.lose(tensor)

    def wrote(self, tensor: torch.Tensor) -> None:
        """Note that all of a tensor's storage was written with known values."""
        weak = self._fake.pop(_C._storage_address(tensor), None)
        if weak is not None:
            torch.UntypedStorage._free_weak_ref(weak)
            super().forget(tensor)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether the values of a tensor are known."""
        return not self._is_fake(tensor) or super().knows(tensor)

    def number(self, tensor: torch.Tensor) -> Number | None:
        """Return the number that fills a tensor, None if there is none or it is not known."""
        if self._is_fake(tensor):
            return super().number(tensor)
        if not self.is_small(tensor):
            return None
        first = tensor.flatten()[0]
        return first.item() if bool((tensor == first).all()) else None

    def tensor(self, tensor: torch.Tensor, *, to_write: bool = False) -> torch.Tensor | None:
        """Return the values of a tensor: see ``Contents.tensor``."""
        if self._is_fake(tensor):
            return super().tensor(tensor, to_write=to_write)
        return tensor if self.is_small(tensor) else None

    def set(self, tensor: torch.Tensor, values: torch.Tensor, *, fresh: bool = False) -> None:
        """Write the values of a tensor, where they are few."""
        if self._few(values.numel(), tensor.dtype) and (fresh or is_whole(tensor)):
            with unfollowed():
                tensor.copy_(values)
            self.wrote(tensor)
        else:
            super().set(tensor, values, fresh=fresh)

    def set_later(self, tensor: torch.Tensor, draw: Callable[[], torch.Tensor | None]) -> None:
        """Find the values now: what reads them without an operator (``tolist``) asks nobody."""
        values = draw() if self.is_small(tensor) else None
        if values is None:
            self.forget(tensor)
        else:
            self.set(tensor, values)

    def set_copy(self, tensor: torch.Tensor, values: torch.Tensor) -> bool:
        """Do the same, if the tensor is all of its storage; returns whether that is so."""
        if not is_whole(tensor) or not self.is_small(tensor):
            return False
        self.set(tensor, values)
        return True

    def fill(self, tensor: torch.Tensor, number: Number) -> None:
        """Note that all elements are one number, or write it where they are few."""
        if self.is_small(tensor) and is_whole(tensor):
            with unfollowed():
                tensor.fill_(number)
            self.wrote(tensor)
        else:
            super().fill(tensor, number)

    def _sweep_fake(self) -> None:
        """Drop the storages that are gone."""
        expired, free = torch.UntypedStorage._expired, torch.UntypedStorage._free_weak_ref
        for address in [address for address, weak in self._fake.items() if expired(weak)]:
            free(self._fake.pop(address))
        self._sweep_fake_at = max(2 * len(self._fake), _SWEEP_AT_LEAST)


class _NoWatch:
    """Nothing but operators writes to the memory of the host."""

    marks = memoryview(bytes(1))

    def begin(self, _address: int, _nbytes: int) -> int:
        """Return the only number."""
        return 0

    def end(self, _watched: int) -> None:
        """Do nothing."""


def zero(tensor: torch.Tensor) -> None:
    """Write zeros to a new tensor that may be in memory which was used before: what reads it without an
    operator (NumPy) has to find zeros."""
    nbytes = tensor.numel() * tensor.element_size()
    if 0 < nbytes < _OWN_PAGES_BYTES:
        ctypes.memset(tensor.data_ptr(), 0, nbytes)


def _give_large_blocks_their_own_pages() -> None:
    """Fix the limit. Other C libraries (macOS, Windows, musl) have none: there, what is read without an
    operator may be what was there before."""
    if not sys.platform.startswith("linux"):
        return
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _OWN_PAGES_BYTES)
