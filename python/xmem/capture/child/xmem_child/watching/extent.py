"""Decides how far a recording goes: a few iterations, or until the memory is steady, an evaluation is over,
or the script ends.

A script that never trains is recorded to its end, unless a number of calls is set: an evaluation may well
come before the training, so that calls alone do not tell the two apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..settings import Extent
from .iterations import Iterations

# An optimizer may step more often than another, or skip steps while the loss scale settles, but at most this
# often.
_PATIENCE = 8
_STEADY_ITERATIONS = 2
_MOST_UNTIL_STEADY = 64
# Gradients are usually accumulated over fewer passes: from then on the user is told what we are waiting for.
_PASSES_WITHOUT_STEP = 32
_NO_GRAPH = (
    "iterations ran on a stream of their own, as before the capture of a CUDA graph; no graph was captured "
    "before the recording stopped, and one takes memory of its own: record more with --until-end"
)


class Recording:
    """Decides whether a recording is complete, from what was counted.

    Args:
        extent: What was asked for.
        iterations: Iterations of the run.
        peak_bytes: Returns the most that the allocators held so far; None if that is not known.
        assume: Takes a sentence that the result should state.
        warms_up: Returns whether a CUDA graph may follow, or was replayed less often than so many times.
    """

    def __init__(
        self,
        extent: Extent,
        iterations: Iterations,
        peak_bytes: Callable[[], tuple[int, ...]] | None,
        assume: Callable[[str], None],
        warms_up: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._extent = extent
        self._iterations = iterations
        self._peak_bytes = peak_bytes
        self._assume = assume
        self._warms_up = warms_up
        self._peaks: list[tuple[int, ...]] = []
        self._warned = False

    def is_complete(self) -> bool:
        """Return whether enough was seen. Called after each step, backward pass, call of an outermost module
        and replay of a CUDA graph."""
        extent, run = self._extent, self._iterations
        if extent.until_end:
            return False
        if run.steps:
            self._note_peak()
            return self._trained()
        if run.backwards:
            self._warn_of_missing_steps()
            # One more than asked for: what follows a pass, such as an update by hand, is part of its
            # iteration.
            return run.optimizers_built == 0 and not extent.with_eval and run.backwards > extent.iterations
        return 0 < extent.calls <= run.calls

    def unseen(self) -> str:
        """Describe what the script may still do after a recording that was ended, and how to see it."""
        extent, run = self._extent, self._iterations
        count = len(run.ends_ns())
        what = {"step": "iterations", "backward": "backward passes", "call": "model calls"}[run.kind]
        later, options = "larger batches", ["--until-steady", "--until-end"]
        if run.kind == "call":
            options = ["--calls", "--until-end"]
        elif not extent.with_eval:
            later, options = f"evaluation, generation and {later}", ["--with-eval", *options]
        more = f"{', '.join(options[:-1])} or {options[-1]}"
        return f"{count} {what} were recorded; {later} after that were not seen: record more with {more}"

    def _trained(self) -> bool:
        extent, run = self._extent, self._iterations
        most = _PATIENCE * extent.iterations
        if not run.stepped(extent.iterations, most):
            return False
        warms_up = self._warms_up(extent.iterations)
        if warms_up and not run.stepped(most, most):
            return False
        if extent.until_steady and not self._is_steady():
            return False
        complete = not extent.with_eval or run.evaluations > 0
        if complete and warms_up:
            self._assume(_NO_GRAPH)
        return complete

    def _is_steady(self) -> bool:
        """Return whether the last iterations brought no new peak, or so many did that waiting is given up."""
        if self._peak_bytes is None:
            return True
        ended = len(self._peaks)
        if ended > _STEADY_ITERATIONS and len(set(self._peaks[-1 - _STEADY_ITERATIONS :])) == 1:
            return True
        if ended >= _MOST_UNTIL_STEADY:
            self._assume(f"memory was still growing after {ended} iterations, when the recording stopped")
            return True
        return False

    def _note_peak(self) -> None:
        if self._peak_bytes is not None and len(self._peaks) < len(self._iterations.ends_ns()):
            self._peaks.append(self._peak_bytes())

    def _warn_of_missing_steps(self) -> None:
        run = self._iterations
        if self._warned or run.optimizers_built == 0 or run.backwards < _PASSES_WITHOUT_STEP:
            return
        self._warned = True
        print(
            f"xmem: {run.backwards} backward passes and no optimizer step yet; recording continues until "
            "there is one or the script ends",
            file=sys.stderr,
            flush=True,
        )
