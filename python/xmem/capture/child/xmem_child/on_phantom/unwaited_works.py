"""Asynchronous collectives that the script never waits for.

From torch 2.8 on, NCCL's process group keeps the tensors of an asynchronous collective until its work is
waited for (``stashed_for_allocator_safety_`` in ``ProcessGroupNCCL.hpp``). Where the script waits for the
work's future instead, or for nothing, they stay until the watchdog, a thread that looks every 100 ms, has
seen that the GPU is done, and another collective begins. How long that is depends on the speed of the GPU.

Here the watchdog sees those of an iteration up to one and a half iterations later, now sooner and now later
(``watchdogs.looks``), and no later than when the collectives of the iteration after the next begin. So it is
with the records of modded-nanogpt on eight H100, whose iterations take 56 to 99 ms: most of their published
runs allocate what the latest of these times makes them hold, and reserve what a mixture of them does.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from .watchdogs import Watchdogs, looks

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


# Iterations after which the watchdog sees a collective at the latest: of a GPU, and of one that is far behind
# the script.
_ITERATIONS = 1
_ITERATIONS_BEHIND = 2
# To wait for the watchdog takes a tenth of a second an iteration; a loss that is averaged is not worth it.
_NOTABLE_BYTES = 1 << 20


class _Look(NamedTuple):
    """A look of the watchdog that is to come.

    Attributes:
        at_launches: When: after so many launches of the process.
        last_event: The last that it sees.
    """

    at_launches: float
    last_event: int


class UnwaitedWorks:
    """Adds up what they use, and says when the watchdog sees them.

    Attributes:
        size_bytes: What their tensors on CUDA devices took, in all.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._sizes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of those not waited for so far
        self._iterations: Callable[[], int] = int
        self._iteration = -1
        self._size_before = 0  # the iteration
        self._events_before: deque[int] = deque(maxlen=1)  # the last iterations
        self._launches_before = 0  # the iteration
        self._launches = 0  # before the last collective
        self._looks = looks()
        self._look: _Look | None = None
        self._watchdogs: Watchdogs | None = None

    def follow(
        self,
        wrap: Callable[[str, Callable[..., Any]], None],
        iterations: Callable[[], int],
        *,
        behind: bool,
    ) -> None:
        """Look at every collective from now on, unless this release frees tensors in another way.

        Args:
            wrap: Replaces a function of ``torch.distributed``, by its name, with ``wrapper(original, ...)``.
            iterations: Returns how many iterations have begun.
            behind: Whether the GPU is behind the script.
        """
        if TorchVersion(torch.__version__) < _FIRST_THAT_KEEPS_TENSORS:
            return
        self._iterations = iterations
        self._events_before = deque(maxlen=1 + (_ITERATIONS_BEHIND if behind else _ITERATIONS))
        if behind:
            self._looks = itertools.repeat(math.inf)
        self._watchdogs = Watchdogs()
        for name in _COLLECTIVES:
            wrap(name, self._began)
        wait = dist.Work.wait

        @functools.wraps(wait)
        def counting_wait(work: Any, *arguments: Any, **named: Any) -> Any:
            self.size_bytes -= self._sizes.pop(work, 0)
            return wait(work, *arguments, **named)

        dist.Work.wait = counting_wait
        atexit.register(self.show_all)

    def show_all(self) -> None:
        """Let the watchdog see all that is over: what follows waits for it."""
        if self._watchdogs is not None:
            self._watchdogs.show_all()

    def _began(self, original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self._show_watchdogs()
        work = original(*arguments, **named)
        # A mode of torch functions calls the collective again, in here.
        if isinstance(work, dist.Work) and work not in self._sizes:
            self._sizes[work] = sum(tensor.nbytes for tensor in _tensors_in((*arguments, *named.values())))
            self.size_bytes += self._sizes[work]
        return work

    def _show_watchdogs(self) -> None:
        """Show them what they would have seen before this collective begins."""
        watchdogs = self._watchdogs
        if watchdogs is None:
            return
        iteration, launches = self._iterations(), watchdogs.launches()
        if iteration != self._iteration:
            self._iteration = iteration
            self._begin_iteration(watchdogs, launches)
        if self._look is not None and launches >= self._look.at_launches:
            watchdogs.show(self._look.last_event, wait=True)
            self._look = None
        self._launches = launches

    def _begin_iteration(self, watchdogs: Watchdogs, launches: int) -> None:
        """Show them what they have seen by now in any case, and find out when they see the iteration that is
        over."""
        events = watchdogs.events()
        self._events_before.append(events)
        an_iteration, self._launches_before = launches - self._launches_before, launches
        is_held = self.size_bytes - self._size_before > _NOTABLE_BYTES
        self._size_before = self.size_bytes
        self._look = None
        if not is_held:
            watchdogs.show(events, wait=False)
            return
        self._look = _Look(self._launches + next(self._looks) * an_iteration, events)
        if launches < self._look.at_launches:
            watchdogs.show(self._events_before[0], wait=True)


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)
