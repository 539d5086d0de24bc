"""Asynchronous collectives that the script never waits for.

From torch 2.8 on, NCCL's process group keeps the tensors of an asynchronous collective until its work is
waited for (``stashed_for_allocator_safety_`` in ``ProcessGroupNCCL.hpp``). Where the script waits for the
work's future instead, or for nothing, they stay until the watchdog, a thread that looks every 100 ms, has
seen that the GPU is done, and another collective begins. How long that is depends on the speed of the GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

_FIRST_THAT_KEEPS_TENSORS = (2, 8)
_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)


class UnwaitedWorks:
    """Adds up what they use.

    Attributes:
        size_bytes: What their tensors on CUDA devices took, in all.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._sizes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of those not waited for so far

    def follow(self, wrap: Callable[[str, Callable[..., Any]], None]) -> None:
        """Look at every collective from now on, unless this release frees tensors in another way.

        Args:
            wrap: Replaces a function of ``torch.distributed``, by its name, with ``wrapper(original, ...)``.
        """
        if TorchVersion(torch.__version__) < _FIRST_THAT_KEEPS_TENSORS:
            return
        for name in _COLLECTIVES:
            wrap(name, self._began)
        wait = dist.Work.wait

        @functools.wraps(wait)
        def counting_wait(work: Any, *arguments: Any, **named: Any) -> Any:
            self.size_bytes -= self._sizes.pop(work, 0)
            return wait(work, *arguments, **named)

        dist.Work.wait = counting_wait

    def _began(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        work = original(*arguments, **named)
        # A mode of torch functions calls the collective again, in here.
        if isinstance(work, dist.Work) and work not in self._sizes:
            self._sizes[work] = sum(tensor.nbytes for tensor in _tensors_in((*arguments, *named.values())))
            self.size_bytes += self._sizes[work]
        return work


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)
