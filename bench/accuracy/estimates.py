"""Estimates of measured runs in every way, from the captures that are there.

    python bench/accuracy/estimates.py --csv RUNS.csv --python ENV/bin/python -o ESTIMATES.csv

One row a run and way, in the columns of COLUMNS; a file that ends in .json holds the same as a list. An
estimate is of what the truth of these files holds: reserved by the allocator, and loaded on the way. A way
without an answer has an empty estimate, and its note says why. Below, errors by run and way go to the screen.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.captures import add_laboratory_arguments, laboratory_of
from accuracy.runs import MIB, Run
from accuracy.ways import WAYS, Laboratory, NotCapturedError, Way
from xmem.errors import XmemError
from xmem.estimation.pipeline import conclude, run_stages
from xmem.estimation.question import Question
from xmem.validation.runs import FAMILIES, IDENTITY

COLUMNS = (
    *IDENTITY,
    "way",
    "estimate_bytes",
    "estimated_oom",
    "seconds",
    "low_bytes",
    "high_bytes",
    "note",
    "policies",
)


@dataclass(frozen=True)
class Estimated:
    """What one way says of one run; sizes in bytes, None where it says nothing.

    Attributes:
        run: The measured run.
        way: How.
        estimate_bytes: To be compared with the truth.
        out_of_memory: Whether the job fails on the run's GPU.
        seconds: That the estimate took, captures and ``policies`` aside.
        low_bytes: Least that the way leaves possible.
        high_bytes: Most of it.
        note: What should be known.
        policies: Bytes by which each policy changed the peak, of those that did; empty for the phantom way,
            which has none.
    """

    run: Run
    way: Way
    estimate_bytes: int | None
    out_of_memory: bool | None
    seconds: float
    low_bytes: int | None
    high_bytes: int | None
    note: str
    policies: Mapping[str, int] = field(default_factory=dict)

    @property
    def error(self) -> float | None:
        """Relative to the truth; None without an estimate, or where either side ran out of memory."""
        if self.estimate_bytes is None or self.out_of_memory or self.run.measured.out_of_memory:
            return None
        return self.estimate_bytes / self.run.measured.peak_bytes - 1

    def to_json(self) -> dict[str, Any]:
        """The values of ``COLUMNS``."""
        values = (
            self.way,
            self.estimate_bytes,
            self.out_of_memory,
            round(self.seconds, 3),
            self.low_bytes,
            self.high_bytes,
            self.note,
            dict(self.policies),
        )
        return dict(self.run.identity) | dict(zip(COLUMNS[len(IDENTITY) :], values, strict=True))


def estimate_all(laboratory: Laboratory, runs: Iterable[Run], ways: Sequence[Way]) -> Iterator[Estimated]:
    """Every way for every run; a trace that cannot be used is a note, not the end."""
    for run in runs:
        for way in ways:
            began = time.perf_counter()
            try:
                answer = laboratory.ask(run, way)
            except (NotCapturedError, XmemError) as error:
                yield Estimated(run, way, None, None, time.perf_counter() - began, None, None, str(error))
                continue
            seconds = time.perf_counter() - began
            seen_bytes = run.loaded_bytes - (answer.moved_bytes if run.first_record_is_late else 0)
            low, high = (
                None if bound is None else bound + seen_bytes
                for bound in (answer.low_bytes, answer.high_bytes)
            )
            estimate_bytes = answer.reserved_bytes + seen_bytes
            yield Estimated(
                run,
                way,
                estimate_bytes,
                answer.out_of_memory,
                seconds,
                low,
                high,
                answer.note,
                {} if way == "phantom" else policies_at_peak(laboratory, run, way),
            )


def policies_at_peak(laboratory: Laboratory, run: Run, way: Way) -> dict[str, int]:
    """Bytes asked for at the peak after less before each policy, of those that changed it.

    Of a fitted model these are the corrections for the GPU: facts were applied to the runs at other batches,
    and say nothing of this one.

    Raises:
        NotCapturedError: The captures are not there.
        TraceError: One cannot be read.
    """
    observed = laboratory.observe_for(way, run.job)
    facts = {policy.name for policy in observed.plan.facts} if way == "fitted" else ()
    stages = run_stages(observed, Question(run.device))
    explained = conclude(stages).estimate
    return {
        policy.name: policy.bytes_at_peak
        for policy in explained.policies
        if policy.bytes_at_peak and policy.name not in facts
    }


def write(estimates: Iterable[Estimated], path: Path) -> None:
    """As CSV, or as JSON where the file is named so."""
    rows = [estimated.to_json() for estimated in estimates]
    if path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1) + "\n")
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value) if value else ""
    return "" if value is None else value


def print_errors(estimates: Sequence[Estimated], ways: Sequence[Way]) -> None:
    """A line a run, a line a way."""
    by_run: dict[int, dict[Way, Estimated]] = {}
    for estimated in estimates:
        by_run.setdefault(id(estimated.run), {})[estimated.way] = estimated
    print(f"{'run':58} {'truth':>12} " + " ".join(f"{way:>12}" for way in ways))
    for of_ways in by_run.values():
        run = next(iter(of_ways.values())).run
        truth = "out of mem." if run.measured.out_of_memory else f"{run.measured.peak_bytes / MIB:.0f} MiB"
        name = f"{run.job} {run.measured.gpu[-8:]}"
        print(f"{name:58} {truth:>12} " + " ".join(f"{_said(of_ways[way]):>12}" for way in ways))
    for way in ways:
        asked = [estimated for estimated in estimates if estimated.way == way]
        for family in FAMILIES:
            errors = [
                abs(estimated.error)
                for estimated in asked
                if estimated.error is not None and estimated.run.job.family == family
            ]
            if errors:
                middle, worst = statistics.median(errors), max(errors)
                print(f"{way} {family}: {len(errors)} runs, median error {middle:.2%}, largest {worst:.2%}")
        verdicts = [found for found in asked if found.out_of_memory is not None]
        wrong = [found for found in verdicts if found.out_of_memory != found.run.measured.out_of_memory]
        print(f"{way}: {len(wrong)} of {len(verdicts)} wrong about running out of memory")


def _said(estimated: Estimated) -> str:
    if estimated.estimate_bytes is None:
        return "-"
    if estimated.out_of_memory:
        return "out of mem."
    if estimated.error is None:
        return f"{estimated.estimate_bytes / MIB:.0f} MiB"
    return f"{estimated.error:+.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_laboratory_arguments(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, help="a .csv or .json file")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of {','.join(WAYS)}")
    options = parser.parse_args()
    ways = [way for way in WAYS if way in options.ways.split(",")]
    if unknown := set(options.ways.split(",")) - set(WAYS):
        parser.error(f"--ways: {', '.join(unknown)}; there are {', '.join(WAYS)}")
    try:
        laboratory, runs = laboratory_of(options)
        estimates = list(estimate_all(laboratory, runs, ways))
        write(estimates, options.output)
    except (XmemError, OSError) as error:
        sys.exit(f"{error}")
    print_errors(estimates, ways)


if __name__ == "__main__":
    main()
