"""Several estimates in one process, one after the other and from threads.

    python bench/several_traces.py TRACE

Prints one JSON object. On a file that is read by all cores at once, threads can gain only what one estimate
leaves idle; so the process keeps to as many cores as there are threads, and the figure is that of the whole.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xmem

TRACES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description="Several estimates in one process.")
    parser.add_argument("trace", type=Path)
    trace: Path = parser.parse_args().trace

    threads = len(os.sched_getaffinity(0))
    traces = [trace] * TRACES
    expected = xmem.estimate(trace).peak_reserved_bytes

    began = time.perf_counter()
    one_by_one = [xmem.estimate(each) for each in traces]
    serial_s = time.perf_counter() - began

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        together = list(pool.map(xmem.estimate, traces))
    threads_s = time.perf_counter() - began

    if {estimate.peak_reserved_bytes for estimate in one_by_one + together} != {expected}:
        raise SystemExit("estimates of one trace differ")
    print(
        json.dumps(
            {
                "traces": TRACES,
                "threads": threads,
                "serial_s": serial_s,
                "threads_s": threads_s,
                "speed_up": serial_s / threads_s,
            }
        )
    )


if __name__ == "__main__":
    main()
