"""A chunk of configurations to their outcomes; work that several of them need is done once."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from xmem.errors import XmemError
from xmem.move import Moved, move, policy_target
from xmem.need import WithoutLimit, replay_without_limit
from xmem.observation import Observation
from xmem.sweep.configuration import Chunk, Configuration
from xmem.sweep.job import Job, JobFile, job_of
from xmem.sweep.outcome import Outcome, outcome_of
from xmem.sweep.what_if import parse_changes

_Result = TypeVar("_Result")

Finished = list[tuple[int, Outcome]]
"""Numbers of configurations, and what became of them."""


def evaluate(file: JobFile, chunk: Chunk) -> Finished:
    """The outcome of every configuration; one that fails says why, and the others go on.

    Raises:
        XmemError: The job itself cannot be used.
    """
    shared = _SharedWork(job_of(file))
    return [(configuration.number, _outcome(shared, configuration)) for configuration in chunk]


def _outcome(shared: _SharedWork, configuration: Configuration) -> Outcome:
    began = time.perf_counter()
    try:
        need = shared.without_limit(configuration).need(configuration.device)
        outcome = outcome_of(need, configuration.device)
    except XmemError as error:
        outcome = Outcome(error=str(error))
    except Exception as error:  # a row must not take the others with it
        outcome = Outcome(error=f"a fault of xmem: {type(error).__name__}: {error}")
    return outcome.after(time.perf_counter() - began)


@dataclass
class _SharedWork:
    """Intermediate results, by all that they depend on."""

    job: Job
    known: dict[Hashable, Any] = field(default_factory=dict)

    def without_limit(self, configuration: Configuration) -> WithoutLimit:
        """The replay that configurations with GPUs of one kind share."""
        alloc_conf, version = configuration.alloc_conf, configuration.torch_version
        key = (*self._moved_key(configuration), alloc_conf, version)
        return self._once(key, lambda: replay_without_limit(self._moved(configuration), alloc_conf, version))

    def _moved(self, configuration: Configuration) -> Moved:
        device, version = configuration.device, configuration.torch_version
        return self._once(
            self._moved_key(configuration), lambda: move(self._observed(configuration), device, version)
        )

    def _moved_key(self, configuration: Configuration) -> tuple[Hashable, ...]:
        observed = self._observed(configuration)
        target = policy_target(observed, configuration.device, configuration.torch_version)
        return (*_observed_key(configuration), target)

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
