"""Backward passes as events, which count iterations where no optimizer steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def follow_backward(on_end: Callable[[], None]) -> None:
    """Call ``on_end`` after every outermost ``backward``; for the life of the process."""
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def backward_followed(*args: Any, **kwargs: Any) -> None:
        # Checkpoints run backward passes inside of one, in threads of the engine.
        inside = torch._C._current_graph_task_id() >= 0
        backward(*args, **kwargs)
        if not inside:
            on_end()

    torch.autograd.backward = backward_followed
