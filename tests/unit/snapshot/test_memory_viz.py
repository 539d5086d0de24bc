"""Exported replays: what the simulator replays again without a difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmem.simulation.alloc_conf import parse
from xmem.simulation.replay import NEVER, Replay, RequestKind, Requests, make_requests, replay
from xmem.snapshot.comparison import compare
from xmem.snapshot.memory_viz import write_snapshot
from xmem.snapshot.snapshot import read_snapshot, replay_recording

MIB = 1 << 20


def write(path: Path, requests: Requests, done: Replay, **settings: Any) -> None:
    with path.open("wb") as file:
        write_snapshot(file, requests, done, **settings)


def random_requests(seed: int, blocks: int = 150) -> Requests:
    random = np.random.default_rng(seed)
    begin = random.integers(0, 1_000_000, blocks)
    end = begin + random.integers(0, 300_000, blocks)
    return make_requests(
        begin,
        np.where(random.random(blocks) < 0.1, NEVER, end),
        np.exp2(random.uniform(0, 26, blocks)).astype(np.int64),
        random.choice([0, 0, 0, 7], blocks),
        empty_cache_ns=random.integers(0, 1_000_000, 2),
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("capacity_bytes", [1 << 40, 256 * MIB])
@pytest.mark.parametrize("on_oom", ["stop", "drop"])
@pytest.mark.parametrize(
    "conf", ["", "expandable_segments:True", "max_split_size_mb:20", "roundup_power2_divisions:4"]
)
def test_an_export_is_replayed_without_a_difference(
    conf: str, on_oom: Any, capacity_bytes: int, seed: int, tmp_path: Path
) -> None:
    requests = random_requests(seed)
    done = replay(requests, options=parse(conf, "2.13"), capacity_bytes=capacity_bytes, on_oom=on_oom)
    write(tmp_path / "s.pickle", requests, done, alloc_conf=conf)
    read = read_snapshot(tmp_path / "s.pickle")
    comparison = compare(read, torch_version="2.13")
    assert comparison.agrees
    (device,) = comparison.devices
    assert device.start_reserved_bytes == 0
    assert device.peak_reserved_bytes == done.peak_reserved.bytes
    state = read.devices[0].state
    for column in (
        "segment_address",
        "segment_bytes",
        "segment_pool",
        "segment_expandable",
        "segment_stream",
    ):
        assert np.array_equal(getattr(state, column), getattr(done.state, column)), column
    for column in ("block_address", "block_bytes", "block_requested_bytes", "block_state", "block_segment"):
        assert np.array_equal(getattr(state, column), getattr(done.state, column)), column


def with_private_pools(requests: Requests, seed: int) -> Requests:
    """The same, with scopes of two pools; one is given back alone, one in flushes."""
    calls = (RequestKind.BEGIN_POOL, RequestKind.END_POOL, RequestKind.RELEASE_POOL)
    at = np.sort(np.random.default_rng(seed).integers(0, len(requests), 13))
    kind = [*calls, RequestKind.RETAIN_POOL, *calls, *calls[:2], *calls[:2], RequestKind.RELEASE_POOL]
    pool = [1, 1, 1, 2, 2, 2, 2, 3, 3, 2, 2, 2]
    kind.append(RequestKind.EMPTY_POOL)
    pool.append(2)
    return replace(
        requests,
        kind=np.insert(requests.kind, at, kind),
        block=np.insert(requests.block, at, pool),
        time_ns=np.insert(requests.time_ns, at, requests.time_ns[at]),
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("capacity_bytes", [1 << 40, 256 * MIB])
@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:20"])
def test_an_export_with_private_pools_is_replayed_without_a_difference(
    conf: str, capacity_bytes: int, seed: int, tmp_path: Path
) -> None:
    requests = with_private_pools(random_requests(seed), seed)
    done = replay(requests, options=parse(conf, "2.13"), capacity_bytes=capacity_bytes)
    assert len(done.reserved_by_private_pools) > 0
    write(tmp_path / "s.pickle", requests, done, alloc_conf=conf)
    device = read_snapshot(tmp_path / "s.pickle").devices[0]
    replayed = replay_recording(device, parse(conf, "2.13"))
    assert replayed.difference is None
    mempool = {(0, 0): 0} | {pool_id: n for n, pool_id in enumerate(device.mempool_id, 1)}
    ours = [mempool[0, pool] for pool in done.state.segment_mempool.tolist()]
    assert replayed.state.segment_mempool.tolist() == ours


@pytest.mark.parametrize(("version", "tie_break"), [("2.12", "object_age"), ("2.13", "segment_age")])
def test_the_rules_behind_an_export_are_found_again(version: str, tie_break: str, tmp_path: Path) -> None:
    """Many free blocks of one size, in segments whose age and address differ since the cache was emptied."""
    random = np.random.default_rng(3)
    begin = random.integers(0, 10_000, 600)
    end = begin + random.integers(1, 3000, 600)
    sizes = random.choice([3 * MIB, 5 * MIB, 12 * MIB], 600)
    requests = make_requests(begin, end, sizes, empty_cache_ns=np.arange(0, 10_000, 500))
    done = replay(requests, options=parse("", version), capacity_bytes=1 << 40)
    write(tmp_path / "s.pickle", requests, done)
    comparison = compare(read_snapshot(tmp_path / "s.pickle"))
    assert comparison.agrees
    assert comparison.rules.tie_break == tie_break
    assert "address" in [rules.tie_break for rules in comparison.rejected]
