"""The core's allocator against the slow reference on many seeded random programs over random settings.

From ``tests``: ``python -m property.long_run --programs 100000``. Ends with 1 if any differed, and names its
seed; ``--first-seed N --programs 1`` repeats it. Hypothesis finds smaller examples, this does more of them.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from property.test_allocator_against_reference import (
    GAUGES,
    MIB,
    POOL_CALLS,
    PoolProgram,
    Reference,
    events_of,
    require_equal_state,
    require_equal_statistics,
)
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.replay import RequestKind, Requests, replay
from xmem.testing.reference.segments import UNLIMITED

BORDERS = (1, 511, 512, 513, 4096, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB, 5 * MIB, 8 * MIB, 9 * MIB)
BORDERS += (10 * MIB - 512, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 11 * MIB, 16 * MIB, 20 * MIB, 20 * MIB + 1)
BORDERS += (24 * MIB, 30 * MIB, 41 * MIB, 60 * MIB)
CAPACITIES = (None, 48 * MIB, 100 * MIB, 101 * MIB, 150 * MIB, 256 * MIB)


def main() -> int:
    parser = argparse.ArgumentParser(prog="long_run", description=__doc__)
    parser.add_argument("--programs", type=int, default=100_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    started = time.monotonic()
    seeds = range(asked.first_seed, asked.first_seed + asked.programs)
    requests = wrong = done = 0
    with ProcessPoolExecutor(asked.jobs) as pool:
        for seed, (length, difference) in zip(seeds, pool.map(run, seeds, chunksize=50), strict=True):
            done += 1
            requests += length
            if difference:
                wrong += 1
                print(f"seed {seed}: {difference}", flush=True)
            if done % 10_000 == 0 or done == asked.programs:
                seconds = time.monotonic() - started
                print(
                    f"{done:,} programs, {requests:,} requests, {wrong} differ, {seconds:.0f} s", flush=True
                )
    return 1 if wrong else 0


def run(seed: int) -> tuple[int, str]:
    """Number of requests of the program with this seed, and what differed."""
    rng = random.Random(seed)
    capacity = rng.choice(CAPACITIES)
    options = random_options(rng)
    if capacity is None:
        options = replace(options, memory_fraction=None)
    requests = random_program(rng)
    try:
        compare(requests, options, capacity)
    except AssertionError as difference:
        return len(requests), f"{options}, {capacity}: {difference}"
    return len(requests), ""


def compare(requests: Requests, options: AllocatorOptions, capacity: int | None) -> None:
    """Gauges after every request; counters, events, failures, placements and blocks at the end."""
    result = replay(requests, options=options, capacity_bytes=capacity, on_oom="drop")
    reference = Reference(requests, options, UNLIMITED if capacity is None else capacity)
    timeline = [getattr(result.timeline, gauge).tolist() for gauge in GAUGES]
    for index, ours in enumerate(zip(*timeline, strict=True)):
        reference.step(index)
        theirs = tuple(reference.allocator.gauge(gauge) for gauge in GAUGES)
        assert ours == theirs, f"after request {index}: {ours}, the reference says {theirs}"
    assert events_of(result) == reference.allocator.events
    assert [failure.request for failure in result.failures] == reference.failed
    require_equal_state(result, reference)
    require_equal_statistics(result, reference)
    for block, (address, size) in reference.placed.items():
        assert (result.placement.address[block], result.placement.size_bytes[block]) == (address, size)


def random_options(rng: random.Random) -> AllocatorOptions:
    """Settings as the property tests draw them."""
    plain = rng.random() < 0.5
    return AllocatorOptions(
        tie_break=rng.choice(["address", "object_age", "segment_age"]),
        large_segment_bytes=rng.choice([20, 12, 50]) * MIB,
        max_split_bytes=rng.choice([None, None, 50 * MIB, 64 * MIB]),
        max_non_split_rounding_bytes=rng.choice([20, 30]) * MIB,
        roundup_power2_divisions=(0,) * 16 if plain else tuple(rng.choices([0, 1, 2, 4, 8], k=16)),
        garbage_collection_threshold=rng.choice([0.0, 0.0, 0.3, 0.8]),
        expandable_segments=rng.random() < 0.5,
        memory_fraction=rng.choice([None, None, 0.5, 0.95, 1.0]),
        throw_on_cudamalloc_oom=rng.random() < 0.25,
        newest_scope_first=rng.random() < 0.5,
        every_scope_captures=rng.random() < 0.5,
        sizes_with_slack=rng.random() < 0.3,
    )


def random_program(rng: random.Random) -> Requests:
    """Allocations, frees, uses on other streams, emptied caches and calls about private pools."""
    rows: list[tuple[RequestKind, int]] = []
    size: list[int] = []
    stream: list[int] = []
    live: list[int] = []
    pools = PoolProgram()
    fresh = partial(rng.randint, 1, 64 * MIB)
    palette = [rng.choice(BORDERS) if rng.random() < 0.8 else fresh() for _ in range(rng.randint(1, 8))]
    calls = rng.choice([0.0, 0.1, 0.3])
    for _ in range(rng.randint(1, 120)):
        choice = rng.random()
        if choice < calls:
            kind = rng.choice(POOL_CALLS)
            number = pools.call(kind, rng.randrange(3))
            if number is not None:
                rows.append((kind, number))
        elif choice < calls + 0.02:
            rows.append((RequestKind.EMPTY_CACHE, -1))
        elif live and rng.random() < 0.45:
            rows.append((RequestKind.FREE, live.pop(rng.randrange(len(live)))))
        elif live and rng.random() < 0.1:
            rows.append((RequestKind.RECORD_STREAM, rng.choice(live)))
        else:
            live.append(len(size))
            size.append(rng.choice(palette) if rng.random() < 0.9 else fresh())
            stream.append(rng.choice([0, 0, 0, 9, 5]))
            rows.append((RequestKind.ALLOC, live[-1]))
    return Requests(
        kind=np.array([kind for kind, _ in rows], np.uint8),
        block=np.array([block for _, block in rows], np.int32),
        time_ns=np.arange(len(rows), dtype=np.int64),
        size_bytes=np.array(size, np.int64),
        stream=np.array(stream, np.int64),
    )


if __name__ == "__main__":
    sys.exit(main())
