"""Seconds of a search for allocator settings, on the seeded training sequence of bench_replay.

    python bench/bench_tune.py [--requests N] [--repeats N] [--json]

Three targets: one with room, one where the defaults only just fit, and one on which nothing fits. The bar is
200 settings on 20,000 requests in 5 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

from bench_replay import training_sequence
from xmem.advice.tuning import search
from xmem.devices.gpus import custom_device
from xmem.simulation.replay import replay

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of a search for allocator settings.")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object a case")
    arguments = parser.parse_args()

    requests = training_sequence(arguments.requests)
    peak = replay(requests).peak_reserved.bytes
    context = custom_device(80 << 30).context_bytes
    cases = {"roomy": 2 * peak, "tight": peak + context, "too small": peak // 2}
    for name, capacity in cases.items():
        times = []
        for _ in range(arguments.repeats):
            begin = time.perf_counter()
            tuning = search(requests, custom_device(capacity), "2.13")
            times.append(time.perf_counter() - begin)
        row = {
            "case": name,
            "requests": len(requests),
            "settings": tuning.candidates,
            "threads": os.cpu_count(),
            "best_s": min(times),
            "median_s": statistics.median(times),
            "saved_peak_bytes": tuning.saved_peak_bytes,
        }
        if arguments.json:
            print(json.dumps(row))
        else:
            print(
                f"{name:10} {row['requests']:>7,} requests  {row['settings']} settings  "
                f"best {row['best_s']:.2f} s  median {row['median_s']:.2f} s  {row['threads']} threads  "
                f"saves {tuning.saved_peak_bytes / MIB:,.0f} MiB of {peak / MIB:,.0f}"
            )


if __name__ == "__main__":
    main()
