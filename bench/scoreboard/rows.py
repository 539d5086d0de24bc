"""Published figures, one row each, whatever project they come from."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xmem.errors import ConfigError, TraceError

Quantity = Literal["allocated", "reserved", "batch"]
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One figure of a real GPU.

    Attributes:
        project: Name of the adapter that can run its job.
        job: What has to run for it; the same for rows that come out of one run.
        item: Which figure of that run it is.
        kind: Kind of job, for the tables: ``operators``, ``training``, ``inference``, ``pre-training``.
        gpu: Name of the card in ``xmem/data/gpus``.
        torch: Release that the source names; empty where it names none.
        quantity: What was measured: the allocator's peak of allocated or reserved bytes, or the largest batch
            that did not run out of memory.
        truth: The figure, in bytes or samples.
        rounding: By how much the published figure may be off because of its last digit, in its own unit.
        is_rebuilt: Whether release and code of the measurement can be had exactly, as far as the source says.
        rival: What the publisher's own estimator says, in the unit of ``truth``; None if it says nothing.
    """

    project: str
    job: str
    item: str
    kind: str
    gpu: str
    torch: str
    quantity: Quantity
    truth: float
    rounding: float
    is_rebuilt: bool
    rival: float | None = None


@dataclass(frozen=True)
class Source:
    """A line of a file of published figures.

    Attributes:
        repository: ``OWNER/NAME`` of the project that published it.
        path: The file there.
        model: As the source names it.
        config: What else it says of the job.
        gpu: As it names the card.
        torch: What it says of releases.
        value: The figure with its unit.
        metric: What was measured.
        notes: What else is known.
    """

    repository: str
    path: str
    model: str
    config: str
    gpu: str
    torch: str
    value: str
    metric: str
    notes: str


def card_of(source: Source, cards: Mapping[str, str], adapter: str) -> str:
    """The card of a line, by the names that the project gives to cards.

    Raises:
        ConfigError: The project's adapter does not know the card.
    """
    try:
        return cards[source.gpu]
    except KeyError:
        raise ConfigError(
            f"{source.path} has a figure of the card {source.gpu!r}, which {adapter} does not know",
            f"add it to _CARDS in bench/scoreboard/projects/{adapter}.py",
        ) from None


def read_sources(file: Path) -> Iterator[Source]:
    """Read the lines of a file with the columns ``source, repo_path, model, config, gpu, torch_version,
    metric, value_bytes_or_gib, notes``.

    Raises:
        TraceError: The file cannot be read, or a column is missing.
    """
    try:
        with file.open(newline="") as lines:
            for number, line in enumerate(csv.DictReader(lines), 2):
                try:
                    yield Source(
                        repository=line["source"].partition("@")[0],
                        path=line["repo_path"],
                        model=line["model"],
                        config=line["config"],
                        gpu=line["gpu"],
                        torch=line["torch_version"],
                        value=line["value_bytes_or_gib"],
                        metric=line["metric"],
                        notes=line["notes"],
                    )
                except KeyError as error:
                    raise TraceError(f"line {number} has no column {error}", str(file)) from error
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", str(file)) from error
