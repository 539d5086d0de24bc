"""What each export costs: seconds beyond the analysis, the size of the file, and memory beyond the analysis.

    python bench/bench_exports.py TRACE... [--json]

Every format is written in a process of its own, which analyses the trace first. Memory is the growth of the
process's resident memory at its highest, so what the analysis freed and the format used again does not count.
Traces of any size come from `bench/make_trace.py`: with `--events 8.5e6 --python-functions 0` the GPU has a
million blocks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from xmem.estimation.analysis import Analysis
from xmem.estimation.pipeline import analyze
from xmem.reports.profiles.folded_stacks import write_folded_stacks
from xmem.reports.profiles.memory_viz import write_memory_viz
from xmem.reports.profiles.perfetto import write_perfetto
from xmem.reports.profiles.speedscope import write_speedscope
from xmem.reports.tables.columns import TableName, table_of
from xmem.reports.tables.csv_table import write_csv
from xmem.reports.tables.parquet_table import write_parquet
from xmem.reports.terminal.tree import write_tree

Export = Callable[[Analysis, IO[bytes]], Any]

EXPORTS: dict[str, Export] = {
    "csv, blocks": lambda analysis, file: write_csv(table_of(analysis, TableName.BLOCKS), file),
    "csv, timeline": lambda analysis, file: write_csv(table_of(analysis, TableName.TIMELINE), file),
    "parquet, blocks": lambda analysis, file: write_parquet(table_of(analysis, TableName.BLOCKS), file),
    "parquet, timeline": lambda analysis, file: write_parquet(table_of(analysis, TableName.TIMELINE), file),
    "memory_viz": write_memory_viz,
    "perfetto": write_perfetto,
    "speedscope": write_speedscope,
    "flamegraph": write_folded_stacks,
    "tree": write_tree,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="What each export costs.")
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--json", action="store_true", help="print one JSON object an export")
    arguments = parser.parse_args()
    for trace in arguments.traces:
        for name in EXPORTS:
            with multiprocessing.get_context("spawn").Pool(1) as alone:
                row = alone.apply(measured, (trace, name))
            if arguments.json:
                print(json.dumps(row), flush=True)
            else:
                print(
                    f"{Path(trace).name} ({row['blocks']:,} blocks): {name}: {row['write_s']:.2f} s, "
                    f"{row['file_bytes'] / 1e6:.1f} MB, {row['memory_bytes'] / 1e6:+.0f} MB of memory",
                    flush=True,
                )


def measured(trace: str, name: str) -> dict[str, Any]:
    analysis = analyze(trace)
    before_bytes = peak_bytes()
    with tempfile.TemporaryFile() as file:
        begin_s = time.perf_counter()
        EXPORTS[name](analysis, file)
        write_s = time.perf_counter() - begin_s
        file_bytes = file.tell()
    return {
        "trace": trace,
        "export": name,
        "blocks": len(analysis.stages.workload),
        "requests": len(analysis.stages.requests),
        "write_s": write_s,
        "file_bytes": file_bytes,
        "memory_bytes": peak_bytes() - before_bytes,
    }


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
