"""The calls of modules that a trace shows, by path."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xmem.run.recorded import Recorded
from xmem.trace.trace import SPAN_KINDS

_MODULE, _FRAME = SPAN_KINDS.index("module"), SPAN_KINDS.index("module_frame")
_PREFIX = "nn.Module: "


class ModuleCall(NamedTuple):
    """A call of a module.

    Attributes:
        path: ``GPT.blocks.3`` in a capture; ``GPT_0.Block_3`` in a foreign one; see ``Attribution.modules``.
        row: Row of the EventTable.
    """

    path: str
    row: int


def module_calls(recorded: Recorded) -> list[ModuleCall]:
    """Return all calls, by thread and time; the profiler's frames if no capture marked them."""
    events, names = recorded.trace.events, recorded.trace.names
    marked = np.flatnonzero(events.kind == _MODULE)
    if len(marked):
        ids, which = np.unique(events.name[marked], return_inverse=True)
        paths = [names[int(each)] for each in ids]
        return [ModuleCall(paths[at], row) for at, row in zip(which.tolist(), marked.tolist(), strict=True)]
    found: list[ModuleCall] = []
    open_: list[ModuleCall] = []
    for row in np.flatnonzero(events.kind == _FRAME).tolist():
        while open_ and not _holds(recorded, open_[-1].row, row):
            open_.pop()
        name = names[int(events.name[row])].removeprefix(_PREFIX)
        open_.append(ModuleCall(f"{open_[-1].path}.{name}" if open_ else name, row))
        found.append(open_[-1])
    return found


def are_marked(recorded: Recorded) -> bool:
    """Return whether a capture marked the calls, by the paths that ``named_modules()`` returns."""
    return bool((recorded.trace.events.kind == _MODULE).any())


def _holds(recorded: Recorded, outer: int, inner: int) -> bool:
    events = recorded.trace.events
    same_thread = events.thread[outer] == events.thread[inner]
    return bool(same_thread and events.begin_ns[inner] < events.end_ns[outer])
