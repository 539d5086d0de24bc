"""``xmem.memory_tracker``: a recording of every call of a function."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from xmem.errors import ConfigError
from xmem.recording.recorder import RecordedDevice, Recorder, StrPath

_KEPT_RECORDINGS = 16
_RUNS_LATER = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)

P = ParamSpec("P")
R = TypeVar("R")


class TrackedFunction(Generic[P, R]):
    """Type of a tracked function for type checkers: the function, and the recordings of its last calls."""

    recordings: deque[Recorder]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        raise NotImplementedError


@overload
def memory_tracker(function: Callable[P, R]) -> TrackedFunction[P, R]: ...


@overload
def memory_tracker(
    *,
    gpu: str | None = ...,
    capacity: int | str | None = ...,
    alloc_conf: str | None = ...,
    json: StrPath | None = ...,
    html: StrPath | None = ...,
    device: RecordedDevice = ...,
    on_result: Callable[[Recorder], object] | None = ...,
) -> Callable[[Callable[P, R]], TrackedFunction[P, R]]: ...


def memory_tracker(
    function: Callable[..., Any] | None = None,
    *,
    on_result: Callable[[Recorder], object] | None = None,
    **options: Any,
) -> Any:
    """Record every call of a function or method, as ``record`` does a block.

    ::

        @xmem.memory_tracker(gpu="rtx-4090")
        def train_step(batch): ...

        train_step(batch)
        print(train_step.recordings[-1].estimate.peak_allocated_bytes)

    Return values and exceptions of the function pass through. Calls inside a recording (recursion, other
    tracked functions) are part of it and have none of their own. ``recordings`` holds the ``Recorder`` of
    each of the last 16 calls.

    Args:
        function: The function, when the decorator is used without arguments.
        on_result: Called with the ``Recorder`` after each recorded call.
        **options: Options of ``record``; with ``json`` and ``html``, each call replaces the file.

    Raises:
        ConfigError: An option is invalid, or the function is a generator or a coroutine.
    """
    if function is None:
        return functools.partial(memory_tracker, on_result=on_result, **options)
    if any(is_later(function) for is_later in _RUNS_LATER):
        raise ConfigError(
            f"@xmem.memory_tracker is on {function.__name__}, but generators and coroutines cannot be "
            "tracked, because they run after the call has returned",
            "put `with xmem.record():` around what runs",
        )
    Recorder(**options)  # raises where the decorator is applied, not at the first call
    recordings: deque[Recorder] = deque(maxlen=_KEPT_RECORDINGS)

    @functools.wraps(function)
    def tracked(*args: Any, **kwargs: Any) -> Any:
        recorder = Recorder(**options).within(args[0] if args else None)
        with recorder:
            result = function(*args, **kwargs)
        if recorder.is_recorded:
            recordings.append(recorder)
            if on_result is not None:
                on_result(recorder)
        return result

    cast("Any", tracked).recordings = recordings
    return tracked
