"""Values that a script reads from the phantom GPU, which computes none.

A read gives zeros, unless ``--value FILE:LINE=NUMBER`` says what is read at that line. Where the size of a
result depends on values (``nonzero``, boolean masks), a share of the elements is taken as selected: all of
them; or, when the mask is a slice of a larger tensor, the slice's share of it, which is right for the
balanced routing of a mixture of experts, where the larger tensor is one-hot. At a line with a number, that
share.

What was read where is counted, so that the user can judge whether the memory depends on it.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from .failures import is_own
from .function_mode import reads
from .spans import SpanRecorder

_SELECTING = "sizes"  # reads that decide how large a result is
_DECIDING = "decisions"  # reads that become conditions
_READING = "numbers"

# How many of the last reads are kept, and named after a failure.
_KEPT_READS = 32
_NAMED_READS = 3
_MOST_SHOWN = 20

# Mark of a tensor whose elements stand for True.
_TRUE = "_xmem_true"


class _Read(NamedTuple):
    """One read, with the functions that were running, outermost first."""

    kind: str
    line: str
    function: str
    value: str
    running: tuple[CodeType, ...]


class Values:
    """Answers reads of device tensors, by the line that makes them."""

    def __init__(self, spans: SpanRecorder, chosen: dict[str, float]) -> None:
        self._spans = spans
        self._chosen = chosen
        self._answer = _phantom_answer()
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self._last: deque[_Read] = deque(maxlen=_KEPT_READS)
        tensor = torch.Tensor
        self.handlers: dict[Any, Callable[..., Any]] = dict.fromkeys(reads(), self._read)
        self.handlers.pop(tensor.__contains__, None)
        self.handlers.update(
            {
                torch.equal: self._read,
                tensor.equal: self._read,
                torch.allclose: self._read,
                tensor.allclose: self._read,
                torch.nonzero: self._select,
                tensor.nonzero: self._select,
                torch.argwhere: self._select,
                tensor.argwhere: self._select,
                torch.where: self._where,
                torch.masked_select: self._masked_select,
                tensor.masked_select: self._masked_select,
                tensor.__getitem__: self._index,
                tensor.__setitem__: self._index,
                torch.isfinite: self._finite,
                tensor.isfinite: self._finite,
                tensor.all: self._reduce,
                torch.all: self._reduce,
                tensor.any: self._reduce,
                torch.any: self._reduce,
                torch.linalg.eig: self._with_finite_input,
                torch.linalg.eigvals: self._with_finite_input,
                torch.unique: self._unique,
                torch.unique_consecutive: self._unique,
                tensor.unique: self._unique,
                tensor.unique_consecutive: self._unique,
            }
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row for each line, function and kind, as the trace's metadata has them."""
        return [
            {"kind": kind, "line": line, "function": function, "count": count}
            for (kind, line, function), count in self.seen.items()
        ]

    def before(self, failed: list[CodeType]) -> list[dict[str, Any]]:
        """The reads that an exception may come from, the likeliest first.

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

    def _read(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if not _on_device(args):
            return result
        if getattr(args[0], _TRUE, False):
            return True
        name = getattr(func, "__name__", "read")
        kind = _DECIDING if isinstance(result, bool) else _READING
        chosen = self._note(kind, name, result)
        if chosen is None or not isinstance(result, (bool, int, float)):
            return result
        return type(result)(chosen)

    def _finite(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Numbers are finite, or else training would not be worth an estimate."""
        result = func(*args, **kwargs)
        setattr(result, _TRUE, True)
        return result

    def _reduce(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if getattr(args[0], _TRUE, False):
            setattr(result, _TRUE, True)
        return result

    def _with_finite_input(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Torch itself asks whether all of the input is finite."""
        with self._answering(1):
            return func(*args, **kwargs)

    def _select(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        mask = args[0] if args else kwargs.get("input")
        return self._with_share_of(mask, func, args, kwargs)

    def _where(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            return self._with_share_of(args[0], func, args, kwargs)
        return func(*args, **kwargs)

    def _masked_select(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        mask = args[1] if len(args) > 1 else kwargs.get("mask")
        return self._with_share_of(mask, func, args, kwargs)

    def _index(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index = args[1]
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
                return self._with_share_of(part, func, args, kwargs)
        return func(*args, **kwargs)

    def _unique(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._with_share_of(args[0], func, args, kwargs)

    def _with_share_of(self, mask: Any, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not (isinstance(mask, torch.Tensor) and mask.is_cuda) or mask.numel() == 0:
            return func(*args, **kwargs)
        natural = _natural_share(mask)
        chosen = self._note(_SELECTING, getattr(func, "__name__", "select"), natural)
        share = natural if chosen is None else chosen
        with self._answering(round(mask.numel() * min(max(share, 0.0), 1.0))):
            return func(*args, **kwargs)

    @contextmanager
    def _answering(self, value: int) -> Iterator[None]:
        """Small reads of this thread give ``value`` meanwhile."""
        self._answer(1, value)
        try:
            yield
        finally:
            self._answer(0, 0)

    def _note(self, kind: str, function: str, given: object) -> float | None:
        """Count a read; the number that the user chose for its line."""
        frame = sys._getframe()
        line = self._spans.user_line(frame)
        name = "" if line is None else f"{line[0]}:{line[1]}"
        self.seen[kind, name, function] += 1
        chosen = self._chosen.get(name)
        value = given if chosen is None else chosen
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        self._last.append(
            _Read(kind, name, function, shown if len(shown) <= _MOST_SHOWN else "zeros", _running(frame))
        )
        return chosen


def _running(frame: FrameType | None) -> tuple[CodeType, ...]:
    """The functions that are running, outermost first."""
    found = []
    while frame is not None:
        if not is_own(frame.f_code):
            found.append(frame.f_code)
        frame = frame.f_back
    return tuple(reversed(found))


def _shared(running: Sequence[CodeType], failed: Sequence[CodeType]) -> int:
    """How many functions two stacks have in common, from the outermost of ``failed`` on."""
    if not failed or failed[0] not in running:
        return 0
    begin = running.index(failed[0])  # below it: what started the interpreter or the thread
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(running[begin:], failed, strict=False))
    )


def _natural_share(mask: torch.Tensor) -> float:
    whole = mask.untyped_storage().nbytes() // mask.element_size()
    return mask.numel() / whole if 0 < mask.numel() < whole else 1.0


def _on_device(args: Any) -> bool:
    return any(isinstance(argument, torch.Tensor) and argument.is_cuda for argument in args)


def _phantom_answer() -> Callable[[int, int], None]:
    answer = ctypes.CDLL(None).xmem_phantom_answer
    answer.argtypes = [ctypes.c_int, ctypes.c_int64]
    answer.restype = None
    return answer
