"""Hold the results of one visit against those of another: a card against the phantom GPU that describes it.

    python bench/gpu/compare.py results/nvidia-h100-80gb-hbm3-torch2.11.0 results/phantom-nvidia-h100-...

Runs of the same part and configuration are compared. Prints how many figures are equal, and every run whose
peaks differ, the largest difference first. It needs the installed package.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xmem.cli.text_table import format_table
from xmem.errors import XmemError
from xmem.validation import (
    LeastMemory,
    LibraryAnswers,
    MeasuredWorkspaces,
    Measurement,
    Network,
    Recorded,
    RecurrentNetworks,
    SampleTable,
    load_measurements,
)

Pair = tuple[Measurement, Measurement]


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("measured", type=Path, help="folder of the results that are true")
    parser.add_argument("other", type=Path, help="folder of the results to hold against them")
    options = parser.parse_args()
    try:
        print(compared(options.measured, options.other))
    except XmemError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 3
    return 0


def compared(measured: Path, other: Path) -> str:
    """Compare two folders of results, as text."""
    pairs = list(_pairs(measured, other))
    if not pairs:
        return "no run of the same part and configuration is in both"
    equal = [
        row for count in (_peaks, _least, _workspaces, _samples, _answers, _networks) for row in count(pairs)
    ]
    texts = [format_table(equal)] if equal else []
    if off := sorted(_off(pairs), key=lambda row: -row[0]):
        texts.append(format_table([row for _, row in off]))
    return "\n\n".join(texts)


def _pairs(measured: Path, other: Path) -> Iterator[Pair]:
    def by_run(folder: Path) -> dict[str, Measurement]:
        return {
            json.dumps([found.part, dict(found.config)], sort_keys=True): found
            for found in load_measurements(folder)
        }

    others = by_run(other)
    for run, truth in by_run(measured).items():
        if run in others:
            yield truth, others[run]


def _row(part: str, figure: str, equal: list[bool]) -> dict[str, object]:
    return {"part": part, "figure": figure, "compared": len(equal), "equal": sum(equal)}


def _peaks(pairs: list[Pair]) -> Iterator[dict[str, object]]:
    for part in dict.fromkeys(truth.part for truth, _ in pairs if isinstance(truth, Recorded)):
        found = [pair for pair in _recorded(pairs) if pair[0].part == part]
        for figure in ("peak_allocated_bytes", "peak_reserved_bytes"):
            yield _row(part, figure, [getattr(a, figure) == getattr(b, figure) for a, b in found])


def _least(pairs: list[Pair]) -> Iterator[dict[str, object]]:
    found = [(a, b) for a, b in pairs if isinstance(a, LeastMemory) and isinstance(b, LeastMemory)]
    if found:
        # Both searches end within 1%.
        near = [abs(a.least_bytes - b.least_bytes) <= 0.01 * a.least_bytes for a, b in found]
        yield _row("least_memory", "least_bytes, to 1%", near)


def _workspaces(pairs: list[Pair]) -> Iterator[dict[str, object]]:
    equal = [
        _same(getattr(a, call), getattr(b, call))
        for truth, other in pairs
        if isinstance(truth, MeasuredWorkspaces) and isinstance(other, MeasuredWorkspaces)
        for a, b in zip(truth.convolutions, other.convolutions, strict=True)
        for call in ("forward", "data_gradient", "filter_gradient")
    ]
    if equal:
        yield _row("convolutions", "requests of a call", equal)


def _samples(pairs: list[Pair]) -> Iterator[dict[str, object]]:
    equal = []
    for truth, other in pairs:
        if isinstance(truth, SampleTable) and isinstance(other, SampleTable):
            others = {(row.operator, row.number): row for row in other.samples}
            for row in truth.samples:
                found = others.get((row.operator, row.number))
                if found is not None:
                    equal += [
                        _same(a, b)
                        for a, b in ((row.forward, found.forward), (row.backward, found.backward))
                        if a is not None and not isinstance(a, str)
                    ]
    if equal:
        yield _row("samples", "requests of a call", equal)


def _answers(pairs: list[Pair]) -> Iterator[dict[str, object]]:
    found: dict[str, list[bool]] = {}
    for truth, other in pairs:
        if isinstance(truth, LibraryAnswers) and isinstance(other, LibraryAnswers):
            for function in truth.packed_calls:
                # A visit may have had no time for the last calls.
                rows = set(zip(*other.calls(function).values(), strict=True))
                same = [row in rows for row in zip(*truth.calls(function).values(), strict=True)]
                found.setdefault(function, []).extend(same)
    for function, equal in found.items():
        yield _row("libraries", function, equal)


def _networks(pairs: list[Pair]) -> Iterator[dict[str, object]]:
    found: list[tuple[Network, Network]] = []
    for truth, other in pairs:
        if isinstance(truth, RecurrentNetworks) and isinstance(other, RecurrentNetworks):
            others = {str(network.settings): network for network in other.networks}
            found += [(n, others[str(n.settings)]) for n in truth.networks if str(n.settings) in others]
    for call in ("forward", "backward") if found else ():
        equal = [_same(getattr(a, call), getattr(b, call)) for a, b in found]
        yield _row("libraries", f"recurrent, requests {call}", equal)


def _recorded(pairs: list[Pair]) -> list[tuple[Recorded, Recorded]]:
    return [(a, b) for a, b in pairs if isinstance(a, Recorded) and isinstance(b, Recorded)]


def _off(pairs: list[Pair]) -> Iterator[tuple[float, dict[str, object]]]:
    for truth, other in pairs:
        if isinstance(truth, Recorded) and not isinstance(other, Recorded):
            yield np.inf, {"run": _title(truth), "allocated": other.outcome, "reserved": other.error[:60]}
        elif isinstance(truth, Recorded) and isinstance(other, Recorded):
            allocated = other.peak_allocated_bytes / truth.peak_allocated_bytes - 1
            reserved = other.peak_reserved_bytes / truth.peak_reserved_bytes - 1
            if allocated or reserved:
                row = {"run": _title(truth), "allocated": f"{allocated:+.3%}", "reserved": f"{reserved:+.3%}"}
                yield max(abs(allocated), abs(reserved)), row


def _title(run: Measurement) -> str:
    config: Mapping[str, Any] = run.config
    more = [str(config[name]) for name in ("precision", "zero_grad") if name in config]
    return " ".join([run.part, run.title, *more])


def _same(a: object, b: object) -> bool:
    """Whether two lists of requests are the same; a message of an error is equal to none."""
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)


if __name__ == "__main__":
    sys.exit(main())
