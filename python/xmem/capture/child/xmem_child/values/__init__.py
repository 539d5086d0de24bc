"""The values in the phantom GPU's memory that are known: those that the host wrote, and those that follow.

Read in this order: ``operators`` (which operators are followed, and how), ``inside`` (those that modes and
subclasses of tensors call), ``host_tensors`` and ``contents`` (what is known of memory), ``draws`` (random
numbers of the GPU), ``engine`` (operators run on the host with known values), ``reads`` (reads of unknown
values), ``outcomes`` (conditions that must hold), ``known`` (what a capture asks of all this), ``rules`` (the
values assumed for unknown ones), ``collectives`` (what ranks tell each other), ``imbalance`` (tokens of
experts) and ``triton`` (kernels that scripts write themselves).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..settings import Settings
from ..watching.spans import SpanRecorder
from .collectives import Collectives, RunningPeers, note_reductions
from .contents import Contents
from .engine import Engine
from .imbalance import Imbalance
from .inside import follow_inside
from .known import KnownValues
from .operators import Registry, unfollowed
from .reads import Reads
from .rules import Rules
from .triton import follow_launches


class Values(KnownValues):
    """Follows known values, and answers reads of unknown ones.

    Args:
        settings: Settings of the capture.
        spans: Knows the user's lines.
        assume: Takes a sentence that a reader of the estimate should know.
    """

    def __init__(self, settings: Settings, spans: SpanRecorder, assume: Callable[[str], None]) -> None:
        super().__init__(Reads(spans, settings.values, assume), assume)
        self._contents = Contents(settings.known_elements)
        self._engine = engine = Engine(self._contents)
        running = RunningPeers.of(settings)
        self._imbalance = Imbalance(settings.imbalance, self._contents, assume)
        collectives = Collectives(engine, self._reads, assume, self._imbalance, running)
        rules = Rules(engine, self._reads, _written(), _answering(), collectives.kernels)
        self._registry = Registry(
            rules.kernel_of,
            engine.forget_written,
            self._kernel_failed,
            on_host=frozenset(collectives.kernels if running is not None else ()),
        )
        self._registry.register()
        self._registry.follow_libraries()
        follow_inside()
        follow_launches(self._contents, self._kernel_failed)
        note_reductions()

    def not_written(self, tensor: torch.Tensor) -> None:
        """Note that a host tensor does not hold what the script expects it to hold."""
        self._contents.note_unwritten(tensor)

    @contextmanager
    def unknown(self, tensor: torch.Tensor) -> Iterator[None]:
        """What is written to a tensor of the GPU meanwhile is unknown."""
        with unfollowed():
            yield
        self._engine.forget(tensor)

    def ended(self) -> None:
        """Note that the run has ended, before its assumptions are read."""
        self._imbalance.note_unused()


def _written() -> Callable[[int, int, int], int]:
    written = ctypes.CDLL(None).xmem_phantom_written
    written.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    written.restype = ctypes.c_int
    return written


def _answering() -> Callable[[int], Any]:
    answer = ctypes.CDLL(None).xmem_phantom_answer
    answer.argtypes = [ctypes.c_int, ctypes.c_int64]
    answer.restype = None

    @contextmanager
    def answering(value: int) -> Iterator[None]:
        """Make small reads of this thread give ``value`` meanwhile."""
        answer(1, value)
        try:
            yield
        finally:
            answer(0, 0)

    return answering
