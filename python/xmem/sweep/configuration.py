"""One configuration of a sweep, and the division of configurations into chunks of work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, TypeAlias

from xmem.devices.gpus import Device
from xmem.estimation.question import Question
from xmem.records import dataclass
from xmem.sweep.layouts import Layout


@dataclass(frozen=True)
class Configuration:
    """Configuration of one row of the results.

    Attributes:
        number: Position in the sweep, from 0.
        layout: How the job is divided; empty for one that is captured in one way.
        point: Value of each dimension of the model; empty for a job that has none.
        what_if: Changes to the job as the command line spells them, `;` between; empty for none.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF``; None for that of the recorded run.
        torch_version: PyTorch version that will run the job; None for the recorded one.
        gpu: The GPU as the spec names it, None for no GPU.
        device: The device of that name.
    """

    number: int
    point: Mapping[str, int]
    what_if: str
    alloc_conf: str | None
    torch_version: str | None
    gpu: str | None
    device: Device | None
    layout: Layout = field(default_factory=dict)

    @cached_property
    def question(self) -> Question:
        """The question to answer for the job.

        Raises:
            ConfigError: The settings or the version are invalid.
        """
        return Question(self.device, self.alloc_conf, self.torch_version)

    def inputs(self) -> dict[str, Any]:
        """Return the columns that identify a row."""
        return {
            "configuration": self.number,
            **self.layout,
            **self.point,
            "what_if": self.what_if,
            "alloc_conf": self.alloc_conf,
            "torch": self.torch_version,
            "gpu": self.gpu,
            "capacity_bytes": None if self.device is None else self.device.total_memory_bytes,
        }


Chunk: TypeAlias = tuple[Configuration, ...]
"""Configurations that one worker evaluates in one go."""


def cut(configurations: Iterable[Configuration], *, workers: int, largest: int) -> list[Chunk]:
    """Cut into chunks for a number of workers; configurations that share work stand together.

    Args:
        configurations: Configurations in any order.
        workers: Number of workers; each gets some four chunks, so that all end at about the same time.
        largest: Most configurations in a chunk, which are lost when a worker dies.
    """
    ordered = sorted(configurations, key=_shared_work)
    size = max(1, min(largest, -(-len(ordered) // (4 * workers))))
    return [tuple(ordered[first : first + size]) for first in range(0, len(ordered), size)]


def _shared_work(configuration: Configuration) -> tuple[Any, ...]:
    device = configuration.device
    return (
        configuration.what_if,
        tuple(configuration.point.values()),
        configuration.torch_version or "",
        (device.compute_capability if device else None) or (0, 0),
        configuration.alloc_conf or "",
        configuration.number,
    )
