"""All benchmarks of reading and estimating, in one run on one machine.

    make bench                 a few minutes
    make bench FULL=1          fast parsers on 860 MB too, files up to 5 GB; needs 12 GB of memory and of disk

Compares xmem with other readers on the same generated file, measures whole estimates stage by stage, how they
grow, compressed files, threads, and the allocator replay; says which of the project's bars are met, and how
the figures moved since the baseline. A missed bar is a line of the table, not an error: this is no test.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from backports import zstd
from isal import igzip

from compare_readers import ALL, FAST, LARGE_SLOW, ReaderResult, compare_readers
from machine import describe_machine
from measure import MB, Spread
from measure_estimates import (
    EstimateResult,
    growth,
    measure_compressed,
    measure_estimates,
    measure_startup,
    measure_threads,
)
from results import print_results, write_figures

BENCH = Path(__file__).parent
ROOT = BENCH.parent
BASELINE = BENCH / "baseline.json"
PAGE = ROOT / "docs" / "performance.md"

SMALL, LARGE, HUGE = 60 * MB, 860 * MB, 5000 * MB
GROWTH = (100 * MB, 300 * MB)
FULL_GROWTH = (2500 * MB, HUGE)
PYTHON_FUNCTIONS = 0.982
"""Share of Python frames in a trace that saw its script's imports."""
EVENT_BYTES = 295.6


@dataclass(frozen=True)
class Files:
    """Generated traces of a length, each made when first asked for."""

    folder: Path

    def trace(self, size_bytes: int) -> Path:
        path = self.folder / f"trace-{size_bytes // MB}mb.json"
        if not path.exists():
            events = round(size_bytes / EVENT_BYTES)
            command = [sys.executable, BENCH / "make_trace.py", "--events", events, "-o", path]
            subprocess.run([*map(str, command), "--python-functions", str(PYTHON_FUNCTIONS)], check=True)
        return path

    def gzipped(self, trace: Path) -> Path:
        path = trace.with_suffix(".json.gz")
        if not path.exists():
            with trace.open("rb") as text, igzip.open(path, "wb", compresslevel=2) as packed:
                shutil.copyfileobj(text, packed, MB)
        return path

    def zstandard(self, trace: Path) -> Path:
        path = trace.with_suffix(".json.zst")
        if not path.exists():
            with trace.open("rb") as text, zstd.open(path, "wb") as packed:
                shutil.copyfileobj(text, packed, MB)
        return path


@dataclass(frozen=True)
class Results:
    """All that was measured.

    Attributes:
        machine: What it was measured on.
        full: Whether everything was.
        readers: Comparisons of readers, each on one file.
        estimates: Whole estimates by length of the file.
        compressed: Read rate over that of the plain file by kind; words where it cannot be read.
        threads_speed_up: Of several estimates from threads over one after the other.
        startup_s: Seconds of a command that does nothing.
        replay: Rows of bench_replay.py.
    """

    machine: Mapping[str, Any]
    full: bool
    readers: Sequence[list[ReaderResult]]
    estimates: Mapping[int, EstimateResult]
    compressed: Mapping[str, Spread | str]
    threads_speed_up: Spread
    startup_s: Spread
    replay: list[dict[str, Any]]

    @cached_property
    def figures(self) -> dict[str, float]:
        """The figures that have a bar, by its name."""
        found = {
            f"rate / {one.reader}": one.xmem_is_times_faster.median
            for results in self.readers
            for one in results
            if one.file_bytes >= LARGE
        }
        found["start-up s"] = self.startup_s.median
        found["replay M/s"] = min(row["requests"] / row["median_s"] for row in self.replay) / 1e6
        large = self.estimates[LARGE]
        found["estimate s"] = large.process_s.median
        found["estimate MB"] = large.peak_anonymous_bytes / MB
        if HUGE in self.estimates:
            found["memory 5 GB / 860 MB"] = (
                self.estimates[HUGE].peak_anonymous_bytes / large.peak_anonymous_bytes
            )
            found["growth"] = growth(list(self.estimates.values()))
        for kind, ratio in self.compressed.items():
            if isinstance(ratio, Spread):
                found[f"rate {kind} / plain"] = ratio.median
        return found

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": 1, "figures": self.figures, **asdict(self)}


def measure(folder: Path, raw_simdjson: Path, full: bool, repeats: int) -> Results:
    files = Files(folder)
    note("readers, small file")
    readers = [compare_readers(files.trace(SMALL), ALL, repeats, raw_simdjson)]
    note("readers, large file")
    large = files.trace(LARGE)
    readers.append(compare_readers(large, FAST, repeats, raw_simdjson))
    if full:
        readers.append(compare_readers(large, LARGE_SLOW, min(repeats, 3), raw_simdjson))
    note("estimates")
    estimates = by_length(measure_estimates([files.trace(size) for size in (*GROWTH, LARGE)], repeats))
    note("compressed files, threads, start-up")
    compressed = measure_compressed(
        large, {"gz": files.gzipped(large), "zst": files.zstandard(large)}, repeats
    )
    threads = measure_threads(files.trace(GROWTH[0]), repeats)
    startup = measure_startup(3 * repeats)
    note("replay")
    replay = json_lines([sys.executable, str(BENCH / "bench_replay.py"), "--json"])
    for size in FULL_GROWTH if full else ():
        note(f"estimate of {size / MB:,.0f} MB")
        trace = files.trace(size)
        estimates |= by_length(measure_estimates([trace], repeats))
        trace.unlink()
    return Results(
        machine=describe_machine(raw_simdjson.parents[1]),
        full=full,
        readers=readers,
        estimates=estimates,
        compressed=compressed,
        threads_speed_up=threads,
        startup_s=startup,
        replay=replay,
    )


def by_length(estimates: Mapping[Path, EstimateResult]) -> dict[int, EstimateResult]:
    return {
        int(trace.stem.removeprefix("trace-").removesuffix("mb")) * MB: one
        for trace, one in estimates.items()
    }


def json_lines(command: Sequence[str]) -> list[dict[str, Any]]:
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def note(what: str) -> None:
    print(f"-- {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--raw-simdjson", type=Path, metavar="FILE", help="the program that CMake built")
    source.add_argument(
        "--results", type=Path, metavar="FILE", help="measure nothing; show what --json wrote"
    )
    parser.add_argument("--full", action="store_true", help="measure everything")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep generated files here, and use those that are there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything that was measured")
    parser.add_argument("--write-baseline", action="store_true", help=f"keep this run as {BASELINE.name}")
    parser.add_argument("--write-page", action="store_true", help=f"put the tables into docs/{PAGE.name}")
    options = parser.parse_args()

    if options.results is not None:
        results = json.loads(options.results.read_text())
    else:
        with tempfile.TemporaryDirectory(prefix="xmem-bench-") as temporary:
            folder = options.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            measured = measure(folder, options.raw_simdjson.resolve(), options.full, options.repeats)
        results = json.loads(json.dumps(measured.to_json()))  # as a reader of the file would see them
    baseline = json.loads(BASELINE.read_text())["figures"] if BASELINE.exists() else {}
    print_results(results, baseline)
    text = json.dumps(results, indent=2) + "\n"
    if options.json is not None:
        options.json.write_text(text)
    if options.write_baseline:
        BASELINE.write_text(text)
    if options.write_page:
        write_figures(results, PAGE)


if __name__ == "__main__":
    main()
