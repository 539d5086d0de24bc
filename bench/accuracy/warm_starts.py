"""Holds what is said of a trace that begins in the middle of a run against the whole run.

    python bench/accuracy/warm_starts.py [--recordings FOLDER] [-o CALIBRATION]

Memory snapshots of real GPUs (``torch.cuda.memory._dump_snapshot``) hold the requests of whole runs.
Replayed, they give the truth for any settings of the allocator. Cut out of the middle, with addresses and
totals as a profiler writes them, they are traces of which nothing else is known. Prints a row per recording,
and writes the residuals that the intervals of such traces are made from: the truth over the nearer bound,
less 1, where the truth lies outside of the bounds, else 0. The last lines leave out one project at a time.

The files are not part of this repository: ``../shared/data/snapshots``, or any folder of such files. The
tables of the ``README.md`` beside the folder say which project a file is from (its first two columns; "same"
repeats); a file that is in none is a project of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xmem.errors import XmemError
from xmem.estimation.calibration import Residuals, render
from xmem.estimation.observation import observe
from xmem.estimation.pipeline import analyze
from xmem.estimation.warm_start import Warm, warm_start_of
from xmem.files.writing import write_whole
from xmem.simulation.alloc_conf import AllocatorOptions, parse
from xmem.simulation.replay import NEVER, BlockState, Replay, make_requests
from xmem.simulation.replay import replay as replay_requests
from xmem.snapshot.snapshot import RecordedAction, RecordedDevice, Snapshot, read_snapshot, state_before
from xmem.testing.trace_builder import TraceBuilder

Int64 = NDArray[np.int64]

_HEADER = (
    "Truth over the nearer bound, less 1, of traces cut out of the middle of recorded runs of real GPUs,\n"
    "replayed with other settings than they were recorded with; 0 between the bounds. The extremes of each.\n"
    "Written by: bench/accuracy/warm_starts.py -o FILE"
)
_SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "large_segment_size_mb:64",
)
_WINDOWS = ((0.3, 0.6), (0.5, 0.9), (0.8, 1.0))
_CONFIDENCE = 0.9
_RELEASE = "2.13.0"


@dataclass(frozen=True)
class Run:
    """The requests of a recorded run, with the number of an event as time; the memory that the recording
    began with is allocated at 0."""

    name: str
    project: str
    alloc: Int64
    free: Int64
    size_bytes: Int64
    stream: Int64
    events: int

    def until(self, time: int, options: AllocatorOptions) -> Replay:
        """Replay the run up to some event."""
        chosen = self.alloc <= time
        free = np.where(self.free <= time, self.free, NEVER)[chosen]
        return replay_requests(
            make_requests(self.alloc[chosen], free, self.size_bytes[chosen], self.stream[chosen]),
            options=options,
        )


def runs(folder: Path, projects: dict[str, str]) -> Iterator[Run]:
    """Yield the run of the busiest device of each recording that can be read."""
    for path in sorted(folder.glob("*.pickle")):
        try:
            snapshot = read_snapshot(path)
            device = max(snapshot.devices.values(), key=lambda each: len(each.trace))
            yield _run(path.stem, projects.get(path.stem, path.stem), snapshot, device)
        except XmemError as error:
            print(f"{path.stem}: left out: {error}", file=sys.stderr)


def _projects(table: Path) -> dict[str, str]:
    """Return the project of each file, from the tables of a page."""
    projects: dict[str, str] = {}
    project = ""
    for line in table.read_text().splitlines() if table.is_file() else ():
        if line.startswith("|"):
            files, source = (cell.strip() for cell in line.split("|")[1:3])
            project = project if source == "same" else source
            projects.update((name.strip(), project) for name in files.split(","))
    return projects


def _run(name: str, project: str, snapshot: Snapshot, device: RecordedDevice) -> Run:
    start = state_before(device, snapshot.allocator_options())
    alloc, free, size_bytes, stream = [], [], [], []
    alive: dict[int, int] = {}
    for row in np.flatnonzero(start.block_state != BlockState.FREE).tolist():
        alive[int(start.block_address[row])] = len(alloc)
        alloc.append(0)
        free.append(NEVER)
        size_bytes.append(int(start.block_requested_bytes[row] or start.block_bytes[row]))
        stream.append(int(start.segment_stream[start.block_segment[row]]))
    trace = device.trace
    for event in range(len(trace)):
        address = int(trace.address[event])
        if trace.action[event] == RecordedAction.ALLOC:
            alive[address] = len(alloc)
            alloc.append(event + 1)
            free.append(NEVER)
            size_bytes.append(int(trace.size_bytes[event]))
            stream.append(int(trace.stream[event]))
        elif trace.action[event] == RecordedAction.FREE_COMPLETED and address in alive:
            free[alive.pop(address)] = event + 1
    columns = (np.array(column, np.int64) for column in (alloc, free, size_bytes, stream))
    return Run(name, project, *columns, len(trace))


def cut(run: Run, whole: Replay, begin: int, end: int) -> bytes:
    """Return what a profiler would have written of a part of the run."""
    placement, timeline = whole.placement, whole.timeline
    requests = make_requests(run.alloc, run.free, run.size_bytes, run.stream)
    trace = TraceBuilder()
    for time in (begin, end):  # a whole iteration between them
        trace.annotation("Optimizer.step#SGD.step", 10 * time, 10 * time + 1)
    trace.operator("aten::mm", 10 * begin, 10 * end + 5)
    for row in np.flatnonzero((requests.time_ns > begin) & (requests.time_ns <= end)).tolist():
        block = int(requests.block[row])
        size = int(placement.size_bytes[block])
        trace.memory(
            size if requests.time_ns[row] == run.alloc[block] else -size,
            10 * int(requests.time_ns[row]),
            address=int(placement.address[block]),
            device_type=1,
            device_index=0,
            total_allocated=int(timeline.allocated_bytes[row]),
            total_reserved=int(timeline.reserved_bytes[row]),
        )
    return trace.bytes()


def residual(truth: int, least: int, most: int) -> float:
    """Return how far the truth lies outside of the bounds."""
    return truth / least - 1 if truth < least else max(truth / most - 1, 0.0)


def main() -> None:
    """Cut, bound, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shared = Path(__file__).resolve().parents[3] / "shared" / "data" / "snapshots"
    parser.add_argument("--recordings", type=Path, default=shared)
    parser.add_argument("-o", "--output", type=Path, help="write the calibration here")
    options = parser.parse_args()
    projects = _projects(options.recordings.parent / "README.md")
    recorded_with = parse("", _RELEASE)
    rows: list[tuple[Run, float]] = []
    cuts = placed = 0
    for run in runs(options.recordings, projects):
        whole = run.until(run.events, recorded_with)
        for first, last in _WINDOWS:
            begin, end = int(first * run.events), int(last * run.events)
            try:
                observed = observe(cut(run, whole, begin, end))
            except XmemError as error:
                print(f"{run.name}, {first} to {last}: {error}", file=sys.stderr)
                continue
            cuts += 1
            warm = warm_start_of(observed.recorded, observed.workload)
            assert warm is not None
            print(f"{run.name:30} {first:.1f} to {last:.1f}  {_figures(warm)}", end="", flush=True)
            if not warm.agrees:
                print("  no answer")
                continue
            placed += 1
            for setting in _SETTINGS:
                found = analyze(observed, alloc_conf=setting).estimate.peak_reserved_bytes
                asked = replace(parse(setting, _RELEASE), sizes_with_slack=True)
                opened = warm.open(observed.workload, asked)
                truth = run.until(end, parse(setting, _RELEASE)).peak_reserved.bytes
                least, most = min(opened.least_bytes, found), max(opened.most_bytes, found)
                rows.append((run, residual(truth, least, most)))
                print(f" {rows[-1][1]:+6.1%}", end="", flush=True)
            print()
    print(f"{placed} of {cuts} starts were rebuilt")
    print(f"{_covered(rows):.1%} of {len(rows)} truths inside, one project left out at a time")
    if options.output is not None:
        write_whole(options.output, render({"recorded": {"other": _calibrated(rows)}}, _HEADER).encode())


def _figures(warm: Warm) -> str:
    counted = warm.counted_bytes
    return (
        f"counted {counted >> 20:6} MiB  from nothing {warm.least_bytes / counted - 1:+6.1%}  "
        f"from the start {warm.most_bytes / counted - 1:+6.1%} "
    )


def _calibrated(rows: list[tuple[Run, float]]) -> Residuals:
    """Return the largest and the least residual of each recording, whose cuts and settings are alike."""
    by_run: dict[str, list[float]] = {}
    for run, value in rows:
        by_run.setdefault(run.name, []).append(value)
    extremes = [end for values in by_run.values() for end in (min(values), max(values))]
    return Residuals(tuple(sorted(extremes)), len({run.project for run, _ in rows}))


def _covered(rows: list[tuple[Run, float]]) -> float:
    """Return the share of rows inside of the interval that the other projects give."""
    inside = 0
    for left_out in {run.project for run, _ in rows}:
        known = _calibrated([row for row in rows if row[0].project != left_out])
        low, high = known.lower(_CONFIDENCE), known.upper(_CONFIDENCE)
        inside += sum(low <= value <= high for run, value in rows if run.project == left_out)
    return inside / len(rows)


if __name__ == "__main__":
    main()
