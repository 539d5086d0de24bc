"""Iterations that only warm up for a CUDA graph: memory that the graph takes comes after them.

PyTorch asks scripts to run some iterations on a stream of their own before a capture ("Whole-network
capture" in its notes on CUDA semantics). A recording that ended after these would miss the graph's pool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


class GraphWarmUps:
    """Knows whether the last optimizer step was such a warm-up or part of a capture.

    Args:
        on_replay: Called after each replay of a graph that has followed such steps.
    """

    def __init__(self, on_replay: Callable[[], None]) -> None:
        self._aside = False
        self._replays = 0
        graph = torch._C._CUDAGraph
        replay = graph.replay

        @functools.wraps(replay)
        def replayed(self_: Any) -> Any:
            done = replay(self_)
            if self._aside:
                self._replays += 1
                on_replay()
            return done

        graph.replay = replayed

    def stepped(self) -> None:
        """Note that an optimizer has stepped on the current stream."""
        self._aside = torch.cuda.is_initialized() and (
            torch.cuda.current_stream() != torch.cuda.default_stream()
        )
        self._replays = 0

    def lead_to_a_graph(self, enough: int) -> bool:
        """Return whether a graph may still be captured, or was replayed less often than ``enough``."""
        return self._aside and self._replays < enough
