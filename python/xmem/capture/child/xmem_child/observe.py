"""The script on the phantom GPU is watched, not changed: its lines, its inputs, the values that it reads."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from .function_mode import FollowingMode, follow_module_moves, follow_threads, module_move, queries
from .session import Session
from .spans import now_ns
from .values import Values

Handler = Callable[..., Any]


class Observation(FollowingMode):
    """Notes each call into torch with the line of the user that made it."""

    def __init__(self, session: Session, values: Values) -> None:
        super().__init__()
        self._session = session
        self._spans = session.spans
        self._queries = queries()
        self._values = values.handlers
        self._moves = {torch.Tensor.to, torch.Tensor.cuda}

    def __torch_function__(
        self,
        func: Handler,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in self._queries or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        begin = now_ns()
        read = self._values.get(func)
        result = func(*args, **kwargs) if read is None else read(func, args, kwargs)
        if self._spans.active:
            self._spans.note_call(begin, now_ns(), on_host=False)
            if func in self._moves and not module_move.active:
                self._note_input(args[0], result, begin)
        return result

    def _note_input(self, source: torch.Tensor, result: torch.Tensor, begin_ns: int) -> None:
        if result.is_cuda and not source.is_cuda:
            self._session.input_arrived(result, begin_ns, self._spans.user_line(sys._getframe()))


def install(session: Session, values: Values) -> None:
    """Watch this thread and those that start later, and begin to record with the first use of the GPU."""
    mode = Observation(session, values)
    follow_threads(mode, session.thread_ends)
    follow_module_moves()
    _follow_first_use(session)
    mode.__enter__()


def _follow_first_use(session: Session) -> None:
    initialize = torch.cuda._lazy_init

    @functools.wraps(initialize)
    def initialize_followed() -> None:
        initialize()
        if not torch.cuda._is_in_bad_fork():
            session.request_device()

    torch.cuda._lazy_init = initialize_followed
