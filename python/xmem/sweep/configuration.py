"""One configuration of a sweep, and how configurations are cut into pieces of work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from xmem.devices import Device


@dataclass(frozen=True)
class Configuration:
    """What one row of the results is about.

    Attributes:
        number: Place in the sweep, from 0.
        point: Value of each dimension of the model; empty for a job that has none.
        what_if: Changes to the job as the command line spells them, `;` between; empty for none.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF``; None for that of the recorded run.
        torch_version: PyTorch that will run the job; None for the one that was recorded.
        gpu: The GPU as the spec names it, None for no GPU.
        device: What that name means.
    """

    number: int
    point: Mapping[str, int]
    what_if: str
    alloc_conf: str | None
    torch_version: str | None
    gpu: str | None
    device: Device | None

    def inputs(self) -> dict[str, Any]:
        """The columns that say what a row is about."""
        return {
            "configuration": self.number,
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
        configurations: In any order.
        workers: Each gets some four chunks, so that all end at about the same time.
        largest: The most configurations in a chunk: what is lost when a worker dies.
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
