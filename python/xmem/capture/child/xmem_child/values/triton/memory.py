"""The memory that a kernel's pointers lead to, as far as it is known, on the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import host_tensors

Contents = list[tuple[torch.Tensor | None, torch.Tensor | None]]
"""What is held of each storage: the ``content`` and ``known`` of its span."""


class UnknownMemoryError(Exception):
    """A kernel read something unknown, or something that is not its own."""


@dataclass(slots=True)
class Span:
    """The memory of one storage.

    Attributes:
        address: Its address on the GPU.
        nbytes: Its size.
        content: What it holds, of dtype uint8; None where it is too large to be kept.
        known: Which bytes of ``content`` are known; None: all of them.
    """

    address: int
    nbytes: int
    content: torch.Tensor | None
    known: torch.Tensor | None

    @property
    def is_known(self) -> bool:
        """Whether all of its bytes are known."""
        return self.content is not None and (self.known is None or bool(self.known.all()))

    def result(self) -> torch.Tensor | None:
        """Return its bytes after the kernel, None where some are unknown."""
        return self.content if self.is_known else None


class Memory:
    """Loads and stores by address.

    Args:
        spans: Memory of the kernel's storages.
    """

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans

    def copy(self) -> Contents:
        """Return what is held of each storage, for ``restore``."""
        return [(_copy(span.content), _copy(span.known)) for span in self._spans]

    def restore(self, contents: Contents) -> None:
        """Hold again what was held at a copy."""
        for span, (content, known) in zip(self._spans, contents, strict=True):
            span.content, span.known = _copy(content), _copy(known)

    def load(self, addresses: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return what lies at addresses, of shape (N,).

        Raises:
            UnknownMemoryError: Some of it is unknown.
        """
        found = host_tensors.zeros(addresses.numel(), dtype=dtype)
        for span, places, chosen in self._by_span(addresses, dtype.itemsize):
            if span.content is None:
                raise UnknownMemoryError
            if span.known is not None and not bool(span.known.view(-1, dtype.itemsize)[places].all()):
                raise UnknownMemoryError
            found[chosen] = span.content.view(dtype)[places]
        return found

    def store(self, addresses: torch.Tensor, values: torch.Tensor) -> None:
        """Write values, both of shape (N,).

        Raises:
            UnknownMemoryError: Some addresses lie in no span.
        """
        size = values.dtype.itemsize
        for span, places, chosen in self._by_span(addresses, size):
            if span.content is not None:
                span.content.view(values.dtype)[places] = values[chosen]
                if span.known is not None:
                    span.known.view(-1, size)[places] = True

    def _by_span(self, addresses: torch.Tensor, size: int) -> list[tuple[Span, torch.Tensor, torch.Tensor]]:
        """Return the spans that addresses lie in, with the elements' positions there and which addresses they
        are."""
        found = []
        missing = addresses.numel()
        for span in self._spans:
            places = addresses - span.address
            inside = (places >= 0) & (places + size <= span.nbytes)
            count = int(inside.sum())
            if not count:
                continue
            if span.nbytes % size or bool((places[inside] % size).any()):
                raise UnknownMemoryError
            found.append((span, places[inside] // size, inside))
            missing -= count
        if missing:
            raise UnknownMemoryError
        return found


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.clone()
