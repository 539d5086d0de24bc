"""Counts the iterations of the script while it runs.

An iteration ends with an optimizer step; of several optimizers, with the step of the one that steps least
often. Where no optimizer of torch steps it ends with a backward pass, what the script does before its next
call of a model included (it may update weights by hand); where there is no backward pass either, with a call
of an outermost module.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import Optimizer

from . import optimizers
from .spans import now_ns


class Steps:
    """What one optimizer did; it may be gone before the recording ends."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.description = optimizers.describe(optimizer)
        self.ends_ns: list[int] = []
        self.real = 0


class Iterations:
    """The steps, backward passes and calls of a run so far.

    Attributes:
        steps: Steps of each optimizer that has stepped.
        optimizers_built: How many optimizers the script has made; they may never step.
        backwards: Backward passes that are over.
        calls: Calls of outermost modules that are over.
        evaluating: Calls of outermost modules without gradients, since the last optimizer step.
        evaluations: Stretches of such calls that ended with an optimizer step, after a first one.
    """

    def __init__(self) -> None:
        self.steps: list[Steps] = []
        self.optimizers_built = 0
        self.evaluating = 0
        self.evaluations = 0
        self._steps_of: WeakKeyDictionary[Optimizer, Steps] = WeakKeyDictionary()
        self._backward_ends_ns: list[int] = []
        self._call_ends_ns: list[int] = []
        self._update_may_follow = False
        self._rounds = 0
        self._may_begin_round = True

    @property
    def backwards(self) -> int:
        """Backward passes that are over."""
        return len(self._backward_ends_ns)

    @property
    def calls(self) -> int:
        """Calls of outermost modules that are over."""
        return len(self._call_ends_ns)

    def rounds(self) -> int:
        """Return how often a model was called first of all or after a backward pass; without such calls, how
        many backward passes or calls are over. They tell iterations apart whose optimizers step one after the
        other, each with collectives of its own."""
        if self._rounds and self.backwards:
            return self._rounds
        return self.backwards or self.calls

    @property
    def kind(self) -> str:
        """What ends an iteration of this script, as far as known: ``step``, ``backward`` or ``call``."""
        if self.steps:
            return "step"
        return "backward" if self.backwards else "call"

    def count_step(self, optimizer: Optimizer, skipped: bool) -> None:
        """Count an outermost step that ends now; skipped by a ``GradScaler`` or real."""
        steps = self._steps_of.get(optimizer)
        if steps is None:
            steps = self._steps_of[optimizer] = Steps(optimizer)
            self.steps.append(steps)
        steps.ends_ns.append(now_ns())
        steps.real += not skipped
        self._update_may_follow = False
        if self.evaluating:
            self.evaluations += 1
        self.evaluating = 0

    def count_backward(self) -> None:
        """Count an outermost backward pass that ends now."""
        self._backward_ends_ns.append(now_ns())
        self._update_may_follow = self._may_begin_round = True

    def call_begins(self) -> None:
        """Note that an outermost module is called: what followed the last backward pass belongs to that
        pass."""
        if self._update_may_follow:
            self._backward_ends_ns[-1] = now_ns()
            self._update_may_follow = False
        self._rounds += self._may_begin_round
        self._may_begin_round = False

    def call_ends(self) -> None:
        """Count a call of an outermost module that is over."""
        self._call_ends_ns.append(now_ns())
        if self.steps and not torch.is_grad_enabled():
            self.evaluating += 1

    def ends_ns(self) -> list[int]:
        """Return when each iteration ended, in order."""
        if self.steps:
            slowest = min(self.steps, key=lambda steps: (len(steps.ends_ns), -steps.ends_ns[0]))
            return slowest.ends_ns
        return self._backward_ends_ns or self._call_ends_ns

    def worked_ns(self) -> int:
        """Return when the last step, backward pass or call of a model ended; 0 before the first one."""
        ends = [steps.ends_ns for steps in self.steps]
        return max(
            (each[-1] for each in (*ends, self._backward_ends_ns, self._call_ends_ns) if each), default=0
        )

    def stepped(self, enough: int, most: int) -> bool:
        """Return whether every optimizer that has stepped has made enough steps, one of them not skipped; or
        one has made so many that the others need not be waited for; or all together, as where each batch or
        fold has a new optimizer."""
        if not self.steps:
            return False
        counts = [len(steps.ends_ns) for steps in self.steps]
        if max(counts) >= most or min(sum(counts), self.backwards) >= most:
            return True
        return all(len(steps.ends_ns) >= enough and steps.real for steps in self.steps)

    def descriptions(self) -> list[dict[str, Any]]:
        """Return the optimizers, as in the trace's metadata."""
        return [steps.description | {"steps": len(steps.ends_ns)} for steps in self.steps]
