"""Source line to show for one that a trace names: the user's own, unless it is uninformative.

A line such as ``trainer.train()`` reaches modules and the optimizer through a package: all of training is one
line. The package's lines behind it are shown instead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from xmem.run.operators import ANNOTATION, covered
from xmem.text.source_lines import SEPARATOR, package_line, user_line
from xmem.trace.trace import SPAN_KINDS, Trace

_LINE, _MODULE = SPAN_KINDS.index("line"), SPAN_KINDS.index("module")
_STEP = "Optimizer.step#"


def shown_line(trace: Trace, *, show_packages: bool = False) -> Callable[[str], str]:
    """Return a function from the name of a line span to the line to show: ``PATH:LINE``, empty for none.

    Args:
        trace: The trace.
        show_packages: Always show the innermost line outside of torch.
    """
    if show_packages:
        return package_line
    silent = lines_that_train(trace)
    return lambda name: package_line(name) if user_line(name) in silent else user_line(name)


def lines_that_train(trace: Trace) -> frozenset[str]:
    """Return the user's lines below which a package calls both modules and the step of an optimizer."""
    events = trace.events
    rows = np.flatnonzero(events.kind == _LINE)
    users = {
        name: user_line(trace.names[name])
        for name in set(events.name[rows].tolist())
        if not trace.names[name].startswith(SEPARATOR) and SEPARATOR in trace.names[name]
    }
    if not users:
        return frozenset()
    steps = np.flatnonzero(events.kind == ANNOTATION)
    steps = steps[[trace.names[name].startswith(_STEP) for name in events.name[steps].tolist()]]

    def below(spans: NDArray[np.intp]) -> set[str]:
        inside = covered(events.begin_ns[rows], events.begin_ns[spans], events.end_ns[spans])
        return {users[name] for name in set(events.name[rows[inside]].tolist()) if name in users}

    return frozenset(below(steps) & below(np.flatnonzero(events.kind == _MODULE)))
