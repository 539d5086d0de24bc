"""How a process of the command failed, noted for the parent.

Standard library only: the process may fail before it imports torch.

A launcher ends with a banner of its own, and the output of several processes is mixed. So each process writes
its uncaught exception to the private folder, and the parent shows that of the one that failed first.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

_OWN = str(Path(__file__).resolve().parents[1])
_MOST_LINES = 30
# Exceptions that the value of a tensor cannot cause.
_NOT_BY_VALUES = (ImportError, OSError, NameError, AttributeError, SyntaxError, MemoryError)


class _Context:
    """What else is known about this process: its reads of values, given the functions that were running."""

    reads: Callable[[list[CodeType]], list[dict[str, Any]]] | None = None


def tell_reads(reads: Callable[[list[CodeType]], list[dict[str, Any]]]) -> None:
    """Have notes contain the values that the script read before it failed (``values.Values.before``)."""
    _Context.reads = reads


def noted() -> bool:
    """Return whether an exception of this process was noted."""
    return _path().exists()


def _path() -> Path:
    return Path(json.loads(os.environ["XMEM_CAPTURE"])["workspace"]) / f"failure.{os.getpid()}.json"


def note(error: BaseException, *, ends_process: bool) -> None:
    """Write an exception to the private folder.

    The first one of a process is kept; one that ends the process replaces one that only ended a thread.
    """
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return
    with contextlib.suppress(Exception):  # the script's own exception is what matters
        path = _path()
        if path.exists() and not (ends_process and not json.loads(path.read_text())["ends_process"]):
            return
        partial = path.with_name(f"failing.{os.getpid()}")
        partial.write_text(json.dumps(_row(error, ends_process)))
        partial.replace(path)


def follow_threads_and_processes() -> None:
    """Note exceptions that end a thread or a process of ``multiprocessing``."""
    import multiprocessing.process

    show = threading.excepthook

    def note_and_show(arguments: Any) -> None:
        if arguments.exc_value is not None:
            note(arguments.exc_value, ends_process=False)
        show(arguments)

    threading.excepthook = note_and_show
    run = multiprocessing.process.BaseProcess.run

    def run_noted(self: Any) -> None:
        try:
            run(self)
        except Exception as error:
            note(error, ends_process=True)
            raise

    multiprocessing.process.BaseProcess.run = run_noted  # type: ignore[method-assign]


def _row(error: BaseException, ends_process: bool) -> dict[str, Any]:
    rank = os.environ.get("RANK", "")
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__) if not is_own(frame.f_code)]
    by_values = _Context.reads is not None and not isinstance(error, _NOT_BY_VALUES)
    return {
        "process": os.getpid(),
        "rank": int(rank) if rank.isdigit() else None,
        "time_ns": time.time_ns(),
        "ends_process": ends_process,
        "type": type(error).__name__,
        "summary": "".join(traceback.format_exception_only(error)).strip(),
        "traceback": _shown(error),
        "reads": _Context.reads(codes) if by_values and _Context.reads is not None else [],
        "others": list(_failed_processes(error)),
    }


def _failed_processes(error: BaseException) -> Iterator[dict[str, int]]:
    """Yield the processes that a launcher's exception reports (``ChildFailedError.failures`` of
    ``torch.distributed.elastic``, 2.6 to 2.13)."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict):
        for rank, failure in failures.items():
            process, status = getattr(failure, "pid", None), getattr(failure, "exitcode", None)
            if isinstance(rank, int) and isinstance(process, int) and isinstance(status, int):
                yield {"rank": rank, "process": process, "exit_status": status}


def _shown(error: BaseException) -> str:
    """Return the last lines of the traceback, without frames of the capture."""
    whole = traceback.TracebackException(type(error), error, error.__traceback__)
    part: traceback.TracebackException | None = whole
    while part is not None:
        part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(_OWN)]
        part = part.__cause__ or part.__context__
    return "\n".join("".join(whole.format()).rstrip().splitlines()[-_MOST_LINES:])


def is_own(code: CodeType) -> bool:
    """Return whether a function is the capture's, not the script's."""
    return code.co_filename.startswith(_OWN)
