"""Lengths of the items of a data set, where they can be read off, and of the items in the batches so far.

A DataLoader over a list, a ``Subset`` of one, or a data set of HuggingFace's ``datasets`` with list columns
knows its items before they are loaded. If the longest are not among the first batches, a later batch needs
more memory than any that was recorded. With ``longest`` every batch is made of the longest items instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence, Sized
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import Subset, dataloader

_MOST_ITEMS = 1_000_000


class DataLengths:
    """Follows the batches of all DataLoaders.

    Args:
        longest: Whether batches are made of the longest items.
        assume: Takes a sentence that the result should state.
    """

    def __init__(self, longest: bool, assume: Callable[[str], None]) -> None:
        self._longest = longest
        self._assume = assume
        self._lengths: WeakKeyDictionary[Any, Sequence[int]] = WeakKeyDictionary()
        self._served: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def install(self) -> None:
        """Follow them for the life of the process."""
        # In every release from 2.6 to 2.13: gives the indices of the next batch, or of the next item.
        next_index = dataloader._BaseDataLoaderIter._next_index

        @functools.wraps(next_index)
        def followed(iterator: Any) -> Any:
            return self._note(iterator, next_index(iterator))

        dataloader._BaseDataLoaderIter._next_index = followed

    def unseen(self) -> list[str]:
        """Return a sentence for each data set whose longest items were in no batch so far."""
        return [
            f"the longest item of a data set has length {max(lengths)}, but the longest in the recorded "
            f"batches has {served}: a batch of longer items needs more; record one with --longest-batch"
            for loader, served in self._served.items()
            if (lengths := self._lengths.get(loader)) and max(lengths) > served
        ]

    def _note(self, iterator: Any, index: Any) -> Any:
        # Each epoch makes another iterator over the same sampler.
        key = iterator._index_sampler
        try:
            if key not in self._lengths:
                self._lengths[key] = lengths_of(iterator._dataset)
            lengths = self._lengths[key]
            if not lengths or not isinstance(index, list) or not index:
                return index
            if self._longest:
                index = self._longest_items(lengths, len(index))
            self._served[key] = max(self._served.get(key, 0), *(lengths[i] for i in index))
        except (TypeError, IndexError, KeyError, AttributeError):
            pass  # a sampler of another kind
        return index

    def _longest_items(self, lengths: Sequence[int], count: int) -> list[int]:
        self._assume("every batch was made of the longest items of the data set (--longest-batch)")
        return sorted(range(len(lengths)), key=lambda item: -lengths[item])[:count]


def lengths_of(dataset: Any) -> Sequence[int]:
    """Return the lengths of all items; empty if they cannot be read off without loading them or are all
    alike."""
    lengths: Sequence[int] = ()
    if isinstance(dataset, Subset):
        whole = lengths_of(dataset.dataset)
        lengths = [whole[i] for i in dataset.indices] if whole else ()
    elif type(dataset) in (list, tuple) and len(dataset) <= _MOST_ITEMS:
        lengths = [_length(item) for item in dataset]
    elif hasattr(dataset, "with_format") and hasattr(dataset, "column_names"):
        lengths = _of_columns(dataset)
    return lengths if len(set(lengths)) > 1 else ()


def _length(item: Any) -> int:
    """Return the length of the longest sequence in an item, 0 if it has none."""
    if isinstance(item, torch.Tensor):
        return int(item.shape[0]) if item.dim() else 0
    if isinstance(item, dict):
        return max(map(_length, item.values()), default=0)
    if isinstance(item, (list, tuple)):
        inside = [_length(part) for part in item if isinstance(part, (torch.Tensor, list, tuple, dict))]
        return max(inside) if inside else len(item)
    return len(item) if isinstance(item, Sized) and hasattr(item, "dtype") else 0  # an array


def _of_columns(dataset: Any) -> Sequence[int]:
    """Return the longest list of each row of a data set of ``datasets`` (from Arrow columns; decodes
    nothing)."""
    if len(dataset) > _MOST_ITEMS or getattr(dataset, "format", {}).get("type") == "custom":
        return ()
    try:
        import pyarrow
        import pyarrow.compute as compute

        table = dataset.with_format("arrow")[:]
    except Exception:  # whatever that package does, the script would have gone on without it
        return ()
    columns = [
        compute.list_value_length(table.column(name)).fill_null(0).to_pylist()
        for name in table.column_names
        if pyarrow.types.is_list(table.schema.field(name).type)
        or pyarrow.types.is_large_list(table.schema.field(name).type)
    ]
    return [max(row) for row in zip(*columns, strict=True)] if columns else ()
