"""Requests for memory that a GPU could not serve, in runs that go on all the same.

With ``--strict-capacity``, or under a limit that the script sets itself, memory runs out as it does on the
GPU. cuDNN then takes another plan, and some scripts catch the error and go on with smaller batches. Others
catch it, print it and end: such a run shows what fits before the failure, not what the job needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

import torch

from ..watching.spans import now_ns


class _Shortage(NamedTuple):
    time_ns: int
    asked_bytes: int
    line: tuple[str, int] | None

    def in_words(self) -> str:
        place = "" if self.line is None else f", at {self.line[0]}:{self.line[1]}"
        return f"{self.asked_bytes / (1 << 20):,.1f} MiB{place}"


class Shortages:
    """Follows failed requests to the allocators of all devices from ``follow`` on; ``line_of`` finds the
    user's own line in a stack."""

    def __init__(self, line_of: Callable[[FrameType | None], tuple[str, int] | None]) -> None:
        self._line_of = line_of
        self._last: _Shortage | None = None
        self._count = 0

    def follow(self) -> None:
        """Begin; CUDA is initialized."""
        torch._C._cuda_attach_out_of_memory_observer(self._note)

    def went_on(self, worked_ns: int) -> str | None:
        """Say that requests failed and the run did more later, until ``worked_ns`` at least; None for other
        runs."""
        if self._last is None or worked_ns <= self._last.time_ns:
            return None
        requests = "a request" if self._count == 1 else f"{self._count:,} requests"
        return (
            f"{requests} for memory failed because the GPU was full (the last for {self._last.in_words()}), "
            "and the run went on: the answer is about what it did instead"
        )

    def gave_up(self, worked_ns: int) -> str | None:
        """Say that a request failed after all work, which ended at ``worked_ns``; None for other runs."""
        if self._last is None or worked_ns > self._last.time_ns:
            return None
        return (
            f"the GPU ran out of memory (a request for {self._last.in_words()}), and the script caught the "
            "error and did no more training, so what it needs was not seen; leave out --strict-capacity to "
            "let it have what it asks for, or take a larger GPU"
        )

    def _note(self, _device: int, asked_bytes: int, _total_bytes: int, _free_bytes: int) -> None:
        self._count += 1
        self._last = _Shortage(now_ns(), asked_bytes, self._line_of(sys._getframe()))
