"""Evaluation of a chunk of configurations; work that several of them need is done once."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from xmem.errors import XmemError
from xmem.estimation.move import Moved, move, policy_target
from xmem.estimation.need import WithoutLimit, replay_without_limit
from xmem.estimation.observation import Observation
from xmem.sweep.configuration import Chunk, Configuration
from xmem.sweep.outcome import ConfigurationOutcome, outcome_of
from xmem.sweep.sweep_job import JobFile, SweepJob, job_of
from xmem.sweep.what_if import parse_changes

_Result = TypeVar("_Result")

Finished = list[tuple[int, ConfigurationOutcome]]
"""Numbers of configurations, and their outcomes."""


def evaluate(file: JobFile, chunk: Chunk) -> Finished:
    """Return the outcome of every configuration; one that fails gives the reason, and the others go on.

    Raises:
        XmemError: The job itself cannot be used.
    """
    shared = _SharedWork(job_of(file))
    return [(configuration.number, _outcome(shared, configuration)) for configuration in chunk]


def _outcome(shared: _SharedWork, configuration: Configuration) -> ConfigurationOutcome:
    began = time.perf_counter()
    try:
        need = shared.without_limit(configuration).need(configuration.device)
        outcome = outcome_of(need, configuration.device)
    except XmemError as error:
        outcome = ConfigurationOutcome(error=str(error))
    except Exception as error:  # one failing row must not end the others
        outcome = ConfigurationOutcome(error=f"a bug in xMem: {type(error).__name__}: {error}")
    return outcome.after(time.perf_counter() - began)


@dataclass
class _SharedWork:
    """Intermediate results, by everything that they depend on."""

    job: SweepJob
    known: dict[Hashable, Any] = field(default_factory=dict)

    def without_limit(self, configuration: Configuration) -> WithoutLimit:
        """Return the replay that configurations with GPUs of one kind share."""
        moved = self._moved_key(configuration)
        question = configuration.question
        key = (*moved, question.alloc_conf, question.torch_version)
        return self._once(key, lambda: replay_without_limit(self._moved(configuration), question))

    def _moved(self, configuration: Configuration) -> Moved:
        return self._once(
            self._moved_key(configuration),
            lambda: move(self._observed(configuration), configuration.question),
        )

    def _moved_key(self, configuration: Configuration) -> tuple[Hashable, ...]:
        observed = self._observed(configuration)
        return (*_observed_key(configuration), policy_target(observed, configuration.question))

    def _observed(self, configuration: Configuration) -> Observation:
        return self._once(
            _observed_key(configuration),
            lambda: self.job.at(configuration.point).what_if(*parse_changes(configuration.what_if)),
        )

    def _once(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        if key not in self.known:
            self.known[key] = make()
        result: _Result = self.known[key]
        return result


def _observed_key(configuration: Configuration) -> tuple[Hashable, ...]:
    return configuration.what_if, tuple(configuration.point.items())
