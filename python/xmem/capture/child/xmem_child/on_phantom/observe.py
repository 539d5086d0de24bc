"""The script on the phantom GPU is watched, not changed: its lines, its inputs, the values that it reads."""

from __future__ import annotations

import atexit
import functools
import importlib
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from ..function_mode import (
    INTEGER_READS,
    FollowingMode,
    follow_module_moves,
    follow_threads,
    module_move,
    queries,
    read_unsigned,
)
from ..patches import Patches
from ..session import Session
from ..values import Values
from ..watching import optimizers
from ..watching.spans import SpanRecorder, now_ns
from . import phantom_distributed

Handler = Callable[..., Any]

_ENGINE_S = 0.1


class InputObserver(Protocol):
    """Uses the spans, and is told about input."""

    spans: SpanRecorder

    def follow_thread(self) -> None:
        """Follow the calling thread, which calls torch."""

    def input_arrived(self, tensor: torch.Tensor, time_ns: int, line: tuple[str, int] | None) -> None:
        """Handle a copy of a tensor outside any model to the GPU."""


class ScriptWatch(FollowingMode):
    """Notes each call into torch with the line of the user that made it."""

    def __init__(self, session: InputObserver) -> None:
        super().__init__(session.spans)
        self._session = session
        self._queries = queries()
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
        if self._spans.active:
            self._session.follow_thread()
        begin = now_ns()
        if func in INTEGER_READS and args[0].dtype == torch.uint64:
            result = read_unsigned(func, args[0])
        else:
            result = func(*args, **kwargs)
        if self._spans.active:
            self._spans.note_call(begin, now_ns(), on_host=False)
            if func in self._moves and not module_move.active:
                self._note_input(args[0], result, begin)
        return result

    def _note_input(self, source: torch.Tensor, result: torch.Tensor, begin_ns: int) -> None:
        if result.is_cuda and not source.is_cuda:
            self._session.input_arrived(result, begin_ns, self._spans.user_line(sys._getframe()))


def install(session: Session, values: Values, patches: Patches) -> None:
    """Watch this thread and those that start later, and begin to record with the first use of the GPU."""
    mode = ScriptWatch(session)
    follow_threads(mode, on_start=values.follow_thread, on_end=session.thread_ends)
    follow_module_moves(patches)
    _answer_as_without(mode, patches)
    atexit.register(_let_the_engine_rest)
    _leave_compiled_code(mode)
    _follow_first_use(session)
    values.follow_thread()
    mode.__enter__()


def _answer_as_without(mode: ScriptWatch, patches: Patches) -> None:
    """Let modules that ask whether anything overrides torch's functions be told of the script's modes alone.

    ``MultiheadAttention`` and ``TransformerEncoder`` take their fused kernels only where nothing does: they
    would launch others, and allocate otherwise, for being watched. Functions that hand themselves to a mode
    ask by another name (``torch.nn.functional`` imports it), and still do.
    """
    asked = torch.overrides.has_torch_function

    def has_torch_function(relevant_args: Any) -> bool:
        if torch.compiler.is_compiling():
            return bool(asked(relevant_args))
        with mode.left():
            return bool(asked(relevant_args))

    patches.replace(torch.overrides, "has_torch_function", has_torch_function)
    # Scripted modules call the operator in its place.
    torch.jit._builtins._register_builtin(has_torch_function, "aten::has_torch_function")


def _leave_compiled_code(mode: ScriptWatch) -> None:
    """Run code that ``torch.compile`` made without the mode: some releases would not compile under it."""
    compile_model = torch.compile

    @functools.wraps(compile_model)
    def compile_followed(*args: Any, **options: Any) -> Any:
        _patch_dynamo(mode)
        optimizers.hide_from_dynamo()
        return compile_model(*args, **options)

    torch.compile = compile_followed


def _patch_dynamo(mode: ScriptWatch) -> None:
    """Patch dynamo once torch.compile imports it: functions that its contexts return leave the mode."""
    frames: Any = importlib.import_module("torch._dynamo.eval_frame")
    context = frames._TorchDynamoContext
    optimize = context.__call__
    if hasattr(optimize, "__wrapped__"):
        return
    for code in phantom_distributed.not_compiled:
        frames.skip_code(code)
    # Kernels of operators and collectives are called in compiled code, too, and what is done for them is not
    # to be compiled itself. (``add`` of the same module would also switch its list of other folders on, which
    # is off.)
    rules: Any = importlib.import_module("torch._dynamo.trace_rules")
    child = re.escape(str(Path(__file__).parents[1]))
    ours = rf"^{child}/(values/|on_phantom/(unwaited_works|watchdogs)\.py$|watching/iterations\.py$)"
    rules.SKIP_DIRS_RE = re.compile(f"{rules.SKIP_DIRS_RE.pattern}|{ours}")

    @functools.wraps(optimize)
    def optimize_followed(self: Any, function: Any) -> Any:
        optimized = optimize(self, function)
        if isinstance(optimized, torch.nn.Module) or not callable(optimized):
            return optimized  # its forward comes this way too

        return _outside_of(mode, optimized)

    context.__call__ = optimize_followed
    try:
        ahead: Any = importlib.import_module("torch._dynamo.aot_compile")
    except ImportError:
        return  # torch before 2.9 compiles with the first call alone
    ahead.aot_compile_fullgraph = _outside_of(mode, ahead.aot_compile_fullgraph)
    ahead.AOTCompiledFunction.__call__ = _outside_of(mode, ahead.AOTCompiledFunction.__call__)


def _outside_of(mode: ScriptWatch, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its calls leave the mode."""

    @functools.wraps(function)
    def outside_of_the_mode(*args: Any, **options: Any) -> Any:
        with mode.left():
            return function(*args, **options)

    return outside_of_the_mode


def _let_the_engine_rest() -> None:
    """Give autograd's worker time to drop Python objects of the last backward pass: doing so while the
    interpreter shuts down aborts it. On a GPU such a program would have waited for its kernels."""
    if torch.cuda.is_initialized():
        time.sleep(_ENGINE_S)


def _follow_first_use(session: Session) -> None:
    initialize = torch.cuda._lazy_init

    @functools.wraps(initialize)
    def initialize_followed() -> None:
        initialize()
        if not torch.cuda._is_in_bad_fork():
            session.request_device()

    torch.cuda._lazy_init = initialize_followed
