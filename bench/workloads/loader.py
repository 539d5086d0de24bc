"""Batches as a DataLoader without workers brings them: new tensors on the host, one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def loader(batch: tuple[torch.Tensor, ...], count: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """The batch ``count`` times over, in memory of its own each time."""
    for _ in range(count):
        yield tuple(tensor.clone() for tensor in batch)
