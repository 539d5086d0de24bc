"""Launches that were run before: the same kernel, on memory that held the same.

Layers of a model, and the iterations of a loop, route the same tokens the same way more often than not.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import torch

from .memory import Contents, Memory, Span
from .program import Program

_MOST_BYTES = 1 << 27  # of the memory that is kept

Key = tuple[object, ...]


class Repeats:
    """What launches left in memory, the last ones first to stay.

    Attributes:
        failed: Launches that cannot be run on the host.
    """

    def __init__(self) -> None:
        self.failed: set[Key] = set()
        self._left: OrderedDict[Key, Contents] = OrderedDict()
        self._bytes = 0

    def key(
        self,
        program: Program,
        grid: tuple[int, int, int],
        arguments: Sequence[int | float],
        spans: Sequence[Span],
    ) -> Key:
        """Return what a launch's effect depends on. Where the memory lies is not part of it."""
        kinds = program.parameters.values()
        given = tuple(
            _place(int(value), spans) if kind.element == "ptr" else (type(value), value)
            for kind, value in zip(kinds, arguments, strict=True)
        )
        held = tuple((span.nbytes, _digest(span.content), _digest(span.known)) for span in spans)
        return (id(program), grid, given, held)  # programs live as long as the process

    def repeat(self, key: Key, memory: Memory) -> bool:
        """Leave in memory what the same launch left before; returns whether there was one."""
        left = self._left.get(key)
        if left is None:
            return False
        self._left.move_to_end(key)
        memory.restore(left)
        return True

    def keep(self, key: Key, memory: Memory) -> None:
        """Remember what a launch left in memory."""
        left = memory.copy()
        self._left[key] = left
        self._bytes += _size(left)
        while self._bytes > _MOST_BYTES:
            _, oldest = self._left.popitem(last=False)
            self._bytes -= _size(oldest)


def _place(address: int, spans: Sequence[Span]) -> tuple[int, int]:
    for number, span in enumerate(spans):
        if 0 <= address - span.address < max(span.nbytes, 1):
            return number, address - span.address
    return -1, address


def _digest(tensor: torch.Tensor | None) -> bytes:
    if tensor is None:
        return b""
    tensor = tensor.contiguous()
    held = (
        ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""
    )
    return hashlib.blake2b(held, digest_size=16).digest()


def _size(contents: Contents) -> int:
    return sum(part.numel() * part.element_size() for pair in contents for part in pair if part is not None)
