"""Timing and weighing child processes, so that no measurement meets what another one left behind."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

SAMPLE_S = 0.002
MB = 1_000_000

Key = TypeVar("Key")


class ChildFailedError(Exception):
    """A measured command ended with an error.

    Attributes:
        last_words: The last line that it wrote on stderr.
    """

    def __init__(self, command: Sequence[str], code: int, last_words: str) -> None:
        super().__init__(f"{' '.join(command)}: exit code {code}: {last_words}")
        self.last_words = last_words


@dataclass(frozen=True)
class Run:
    """One run of a command.

    Attributes:
        wall_s: From before the process exists until it is gone.
        text: What it printed.
        peak_anonymous_bytes: Most memory that is not pages of files, None where it was not sampled.
    """

    wall_s: float
    text: bytes
    peak_anonymous_bytes: int | None = None

    @cached_property
    def output(self) -> Any:
        """The JSON object that it printed."""
        return json.loads(self.text)


def run(
    command: Sequence[str],
    *,
    weigh: bool = False,
    cpus: set[int] | None = None,
    exit_codes: Sequence[int] = (0,),
) -> Run:
    """Run a command to its end.

    Args:
        command: What to run.
        weigh: Sample its memory every 2 ms. That costs time: the seconds of such a run are not to be used.
        cpus: The only cores that it may use.
        exit_codes: What it may end with.

    Raises:
        ChildFailedError: Any other exit code.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with _on_cpus(cpus):
            began = time.perf_counter()
            child = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        peak = _peak_anonymous_bytes(child) if weigh else None
        code = child.wait()
        wall_s = time.perf_counter() - began
        stdout.seek(0)
        stderr.seek(0)
        if code not in exit_codes:
            lines = stderr.read().decode(errors="replace").split("\n")
            raise ChildFailedError(command, code, next((line for line in reversed(lines) if line), ""))
        return Run(wall_s, stdout.read(), peak)


@contextmanager
def _on_cpus(cpus: set[int] | None) -> Iterator[None]:
    """A child started inside inherits the cores, and counts them to choose its number of threads."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, own if cpus is None else cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _peak_anonymous_bytes(child: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{child.pid}/status")
    peak = 0
    while child.poll() is None:
        for line in status.read_text().splitlines():
            if line.startswith("RssAnon:"):
                peak = max(peak, 1024 * int(line.split()[1]))
        time.sleep(SAMPLE_S)
    return peak


def first_cpu() -> set[int]:
    return {min(os.sched_getaffinity(0))}


@dataclass(frozen=True)
class Spread:
    """Median and extremes of repeated measurements."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


def interleaved(cases: Mapping[Key, Callable[[], Run]], repeats: int) -> dict[Key, list[Run]]:
    """Run every case once a round, so that a machine that slows down slows all of them."""
    runs: dict[Key, list[Run]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case, start in cases.items():
            runs[case].append(start())
    return runs
