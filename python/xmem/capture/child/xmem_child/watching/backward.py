"""Backward passes: as events, which count iterations where no optimizer steps; those that make a graph."""

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


_CREATE_GRAPH_AT = {"backward": 3, "grad": 4}


def follow_graphs_of_gradients(on_graph: Callable[[], None]) -> None:
    """Call ``on_graph`` before every backward pass that makes a graph; for the life of the process.

    Autograd's engine runs nodes by their sequence numbers, which each thread counts by itself
    (``torch/csrc/autograd/function.h``); those of a GPU have a thread, those of the CPU the caller's. So the
    backward of such a graph runs in another order on the CPU.
    """

    def follow(name: str) -> None:
        run, place = getattr(torch.autograd, name), _CREATE_GRAPH_AT[name]

        @functools.wraps(run)
        def run_noted(*args: Any, **kwargs: Any) -> Any:
            makes_graph = kwargs.get("create_graph", len(args) > place and args[place])
            # `torch.func.grad` always does, whether or not anything is done with it.
            if makes_graph and torch._C._functorch.peek_interpreter_stack() is None:
                on_graph()
            return run(*args, **kwargs)

        setattr(torch.autograd, name, run_noted)

    for name in _CREATE_GRAPH_AT:
        follow(name)
