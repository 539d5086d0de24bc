"""Reads of unknown values: what was read where, what is given, and what the user chose instead.

``--value FILE:LINE=NUMBER`` sets what is read at a line, ``--value FUNCTION=NUMBER`` at any line of a
function and of those that it calls. Reads are counted by place, so that the user can judge whether the memory
depends on them.
"""

from __future__ import annotations

import linecache
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from ..masking import with_short_home
from ..records.failures import is_own
from ..watching.spans import SpanRecorder
from .outcomes import allowed_outcome

# How many of the last reads are kept, and named after a failure.
_KEPT_READS = 32
_NAMED_READS = 3
_MOST_SHOWN = 20

# Questions of PyTorch's own Python code, by file and text of the line, and the answers of a run that trains:
# the draws of distributions are accepted; LBFGS goes on, keeps its history, and its loss falls.
_FALLS = "falls"
_ANSWERS: tuple[tuple[str, str, bool | str], ...] = (
    ("/torch/distributions/von_mises.py", "if accept", True),
    ("/torch/optim/lbfgs.py", "ys >", True),
    ("/torch/optim/lbfgs.py", "float(", _FALLS),
)

# How often a condition is read at one line, with no training step in between, before it is taken as true: for
# loops that wait, and for those that call a model each time. The latter mostly generate tokens, which has a
# limit of its own.
_MOST_WAITS = 1000
_MOST_WAITS_WITH_CALLS = 10_000

_TORCH = f"{Path(torch.__file__).parent}/"


class _Read(NamedTuple):
    """One read, with the functions that were running, outermost first."""

    kind: str
    line: str
    function: str
    value: str
    running: tuple[CodeType, ...]


class _Wait:
    """A condition that is read again and again at one line, which may be a library's.

    Attributes:
        reads: How often it was read.
        calls_before: How often models had been called before.
    """

    def __init__(self, calls_before: int) -> None:
        self.reads = 0
        self.calls_before = calls_before


class Reads:
    """Notes reads, by the line that makes them.

    Args:
        spans: Knows the user's lines.
        chosen: Numbers by line or by function.
        assume: Takes a sentence that a reader of the estimate should know.
    """

    def __init__(self, spans: SpanRecorder, chosen: dict[str, float], assume: Callable[[str], None]) -> None:
        self._spans = spans
        self._chosen = {with_short_home(name): number for name, number in chosen.items()}
        self._functions = {name for name in chosen if ":" not in name}
        self._assume = assume
        self._waits: dict[tuple[CodeType | None, int], _Wait] = {}  # since the last training step
        self._calls = 0  # of models
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self._last: deque[_Read] = deque(maxlen=_KEPT_READS)

    def deciding_lines(self) -> list[str]:
        """Return the lines that made numbers or conditions of unknown values, most reads first."""
        lines: Counter[str] = Counter()
        for (kind, line, _), count in self.seen.items():
            if kind != "sizes" and line:
                lines[line] += count
        return [line for line, _ in lines.most_common(_NAMED_READS)]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each line, function and kind, as in the trace's metadata."""
        return [
            {"kind": kind, "line": line, "function": function, "count": count}
            for (kind, line, function), count in self.seen.items()
        ]

    def stepped(self) -> None:
        """Note that a training step was made: whatever the script waited for has come."""
        self._waits.clear()

    def model_called(self) -> None:
        """Note that a model was called."""
        self._calls += 1

    def unknown(self, kind: str, function: str, given: Any) -> Any:
        """Note a read of an unknown value.

        Args:
            kind: What depends on it: "sizes", "decisions" or "numbers".
            function: The function that reads.
            given: The value that the read gives, as a number.

        Returns:
            The given value, or the one that the user chose.
        """
        # The caller's: a frame that holds itself keeps all tensors above it until Python collects cycles.
        frame = sys._getframe(1)
        name = self._line(frame)
        self.seen[kind, name, function] += 1
        chosen = self._choice(name, frame)
        value = given if chosen is None else type(given)(chosen) if isinstance(given, (bool, int)) else chosen
        known = _known_answer(frame) if chosen is None else None
        if known == _FALLS:
            value = 1 / sum(self.seen.values())
        elif known is not None and kind == "decisions":
            value = type(given)(known)
        elif chosen is None and kind == "decisions" and (allowed := allowed_outcome(frame)) is not None:
            value = type(given)(allowed)
        elif chosen is None and kind == "decisions":
            value = self._decision(name, frame, function, value)
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        self._last.append(
            _Read(kind, name, function, shown if len(shown) <= _MOST_SHOWN else "zeros", _running(frame))
        )
        return value

    def chosen_here(self) -> float | None:
        """Return the number that the user chose for the running functions, None if there is none."""
        if not self._chosen:
            return None
        frame = sys._getframe(1)
        return self._choice(self._line(frame), frame)

    def before(self, failed: list[CodeType]) -> list[dict[str, Any]]:
        """Return the reads that may have caused an exception, the likeliest first.

        A value is read in a function that fails later, or below one: the more of the functions that failed
        were running at the read, the likelier it is, and of equals the last.

        Args:
            failed: The functions of the traceback, outermost first.
        """
        reads: dict[tuple[str, str], _Read] = {}
        for read in reversed(self._last):
            if read.line:
                reads.setdefault((read.line, read.function), read)
        likely = sorted(reads.values(), key=lambda read: -_shared(read.running, failed))
        return [
            {"kind": read.kind, "line": read.line, "function": read.function, "value": read.value}
            for read in likely[:_NAMED_READS]
            if _shared(read.running, failed)
        ]

    def _decision(self, name: str, frame: FrameType, function: str, value: Any) -> Any:
        """Decide a condition: one that the script waits for becomes true in the end."""
        wait = self._waits.setdefault(_place(frame), _Wait(self._calls))
        wait.reads += 1
        calls = self._calls - wait.calls_before
        most = _MOST_WAITS if calls < wait.reads // 2 else _MOST_WAITS_WITH_CALLS
        if wait.reads <= most:
            return value
        if wait.reads == most + 1:
            where = name or "a line of a library"
            self._assume(
                f"{where} read the same unknown condition {most:,} times between two training steps "
                f"({function}): it was false, and is true from then on; set it with --value"
            )
        return not value

    def _line(self, frame: FrameType) -> str:
        line = self._spans.user_line(frame)
        return "" if line is None else f"{line[0]}:{line[1]}"

    def _choice(self, name: str, frame: FrameType | None) -> float | None:
        if name in self._chosen:
            return self._chosen[name]
        while self._functions and frame is not None:
            code = frame.f_code
            for function in (code.co_qualname, code.co_name):
                if function in self._functions:
                    return self._chosen[function]
            frame = frame.f_back
        return None


def _known_answer(frame: FrameType | None) -> bool | str | None:
    """Return what PyTorch's own code has to read where it asks, None elsewhere."""
    while frame is not None and is_own(frame.f_code):
        frame = frame.f_back
    if frame is None:
        return None
    file = frame.f_code.co_filename
    for part, text, answer in _ANSWERS:
        if part in file and text in linecache.getline(file, frame.f_lineno):
            return answer
    return None


def _place(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """Return the line that reads: the innermost that is neither the capture's nor PyTorch's."""
    while frame is not None and (is_own(frame.f_code) or frame.f_code.co_filename.startswith(_TORCH)):
        frame = frame.f_back
    return (None, 0) if frame is None else (frame.f_code, frame.f_lineno)


def _running(frame: FrameType | None) -> tuple[CodeType, ...]:
    """Return the functions that are running, outermost first."""
    found = []
    while frame is not None:
        if not is_own(frame.f_code):
            found.append(frame.f_code)
        frame = frame.f_back
    return tuple(reversed(found))


def _shared(running: Sequence[CodeType], failed: Sequence[CodeType]) -> int:
    """Return how many functions two stacks have in common, from the outermost of ``failed`` on."""
    if not failed or failed[0] not in running:
        return 0
    begin = running.index(failed[0])  # below it: what started the interpreter or the thread
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(running[begin:], failed, strict=False))
    )
