"""Requests per second of the allocator replay, on a seeded sequence shaped like training.

    python bench/bench_replay.py [--requests N] [--repeats N] [--json]

Parameters live for ever; each step allocates activations that backward frees in reverse order, and
temporaries that die within a few requests; sizes repeat from step to step. Before any time is printed, gauges
of a prefix are checked against the slow reference, request by request. Times are of one core; the best and
the median of the repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

from xmem.simulation.alloc_conf import AllocatorOptions, parse
from xmem.simulation.replay import NEVER, RequestKind, Requests, make_requests, replay
from xmem.testing.reference.caching_allocator import CachingAllocator
from xmem.testing.reference.segments import Device

GIB = 1 << 30
LAYERS = 120
CHECKED_REQUESTS = 1500


def training_sequence(requests: int, seed: int = 0) -> Requests:
    random = np.random.default_rng(seed)
    sizes = (2 ** random.uniform(8, 25, 64)).astype(np.int64)
    alloc, free, size = [], [], []
    now = 0

    def allocate(n: int, lifetime: int) -> int:
        nonlocal now
        alloc.append(now)
        free.append(NEVER if lifetime == 0 else now + lifetime)
        size.append(int(n))
        now += 2
        return len(alloc) - 1

    for layer in range(4 * LAYERS):
        allocate(sizes[layer % 64], 0)
    while 2 * len(alloc) < requests:
        activations = []
        for layer in range(LAYERS):
            for operator in range(3):
                allocate(sizes[(7 * layer + operator) % 64], int(random.integers(3, 12)))
            activations.append(allocate(sizes[(3 * layer) % 64], 0))
        for layer in reversed(range(LAYERS)):
            for operator in range(3):
                allocate(sizes[(5 * layer + operator) % 64], int(random.integers(3, 12)))
            free[activations[layer]] = now - 1
    return make_requests(alloc, free, size)


def check_prefix(requests: Requests, options: AllocatorOptions, capacity: int) -> None:
    result = replay(requests, options=options, capacity_bytes=capacity, until=CHECKED_REQUESTS - 1)
    reference = CachingAllocator(options, Device(capacity))
    live = {}
    for index in range(CHECKED_REQUESTS):
        block = int(requests.block[index])
        if requests.kind[index] == RequestKind.ALLOC:
            live[block] = reference.malloc(int(requests.size_bytes[block]), 0)
        else:
            reference.free(live.pop(block))
        for gauge in ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"):
            got, expected = int(getattr(result.timeline, gauge)[index]), reference.gauge(gauge)
            if got != expected:
                raise SystemExit(f"request {index}: {gauge} is {got}, the reference says {expected}")


def seconds(requests: Requests, options: AllocatorOptions, capacity: int, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        replay(requests, options=options, capacity_bytes=capacity)
        times.append(time.perf_counter() - begin)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="Requests per second of the allocator replay.")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print one JSON object a case")
    arguments = parser.parse_args()

    cases = [
        ("defaults", "", 80 * GIB),
        ("address ties", "", 80 * GIB),
        ("expandable", "expandable_segments:True", 80 * GIB),
        ("max_split", "max_split_size_mb:64", 80 * GIB),
    ]
    long, short = training_sequence(arguments.requests), training_sequence(20_000)
    for name, text, capacity in cases:
        options = parse(text, "2.11" if name == "address ties" else "2.13")
        check_prefix(long, options, capacity)
        for requests in (long, short):
            times = seconds(requests, options, capacity, arguments.repeats)
            row = {
                "case": name,
                "requests": len(requests),
                "best_s": min(times),
                "median_s": statistics.median(times),
                "requests_per_s": round(len(requests) / min(times)),
            }
            if arguments.json:
                print(json.dumps(row))
            else:
                print(
                    f"{name:13} {row['requests']:>9,} requests  best {min(times) * 1e3:8.2f} ms"
                    f"  median {row['median_s'] * 1e3:8.2f} ms  {row['requests_per_s'] / 1e6:6.1f} M/s"
                )


if __name__ == "__main__":
    main()
