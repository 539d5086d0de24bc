"""Progress of a long read, shown only on a terminal and only when the read takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich import progress as rich_progress

    from xmem.trace.trace import Progress, ReadProgress

_PATIENCE_S = 0.5
_REDRAW_S = 0.1


@contextmanager
def reading(source: str) -> Iterator[Progress | None]:
    """Yield the ``progress`` argument of a read; None where stderr is not a terminal.

    The line goes to stderr, and is removed after the read.
    """
    if not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as drawn:
        yield _Line("standard input" if source == "-" else source.rsplit("/", 1)[-1], drawn)


class _Line:
    """``reading trace.json  1.2/5.0 GB  980.0 MB/s  0:00:04 left``, drawn by the thread that reads."""

    def __init__(self, name: str, drawn: ExitStack) -> None:
        self._name = name
        self._drawn = drawn
        self._next_s = time.monotonic() + _PATIENCE_S
        self._bar: rich_progress.Progress | None = None

    def __call__(self, progress: ReadProgress) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _REDRAW_S
        total = None if progress.source_size_bytes < 0 else progress.source_size_bytes
        if self._bar is None:
            self._bar = self._drawn.enter_context(_bar())
            self._bar.add_task(self._name, total=total)
        self._bar.update(self._bar.task_ids[0], completed=progress.source_bytes, refresh=True)


def _bar() -> rich_progress.Progress:
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class TimeLeft(progress.TimeRemainingColumn):
        def render(self, task: progress.Task) -> Text:
            left = super().render(task)
            return left if task.total is None else left.append(" left")

    return progress.Progress(
        progress.TextColumn("reading {task.description} ", markup=False),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        TimeLeft(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
