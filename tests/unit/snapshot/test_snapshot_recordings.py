"""Recordings of real GPU runs, replayed event by event; every one must agree to the byte.

They were made by releases that break ties by address; under those rules nothing may differ.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from xmem.errors import TraceError
from xmem.simulation.alloc_conf import parse
from xmem.simulation.replay import make_requests, replay
from xmem.snapshot.snapshot import (
    RecordedAction,
    RecordedDevice,
    read_snapshot,
    replay_recording,
    state_before,
)

ROOT = Path(__file__).parents[3]
RECORDINGS = Path(os.environ.get("XMEM_SHARED", ROOT / ".." / "shared")) / "data" / "snapshots"

# Name, device, peak of reserved bytes as the collection states it.
EMPTY_START = [
    ("train_empty_start_100", 0, 786_432_000),
    ("train_empty_start_200_amp", 0, 1_205_862_400),
    ("forward_empty_start_100", 0, 463_470_592),
    ("tiny_grad_empty_start", 0, 4_439_670_784),
    ("small_empty_start", 0, 3_781_165_056),
    ("expandable_3gpu_oom_empty_start", 0, 8_541_700_096),
    ("expandable_3gpu_oom_empty_start", 1, 84_202_749_952),
    ("expandable_3gpu_oom_empty_start", 2, 21_883_781_120),
]
WARM_START = [
    ("gpt_small_forward", 0, 1_256_194_048),
    ("gpt_medium_backward", 0, 8_575_254_528),
    ("gpt_2.7b_fullstep_ctx256", 0, 61_111_009_280),
    ("gpt_large_forward_bf16", 0, 6_186_598_400),
    ("gpt_large_forward_grad_ctx512", 0, 12_891_193_344),
    ("gpt_xl_inference_ctx128", 0, 25_329_401_856),
    ("segment_free_inference", 0, 24_366_809_088),
    ("warm_fragmented_a", 0, 9_193_914_368),
    ("warm_fragmented_b", 0, 22_194_159_616),
    ("warm_many_segment_frees", 0, 5_802_819_584),
    ("warm_10_streams", 0, 22_519_218_176),
    ("old_schema_small", 0, 134_217_728),
    ("newest_schema_warm", 0, 937_426_944),
]


def recording(name: str) -> Path:
    path = RECORDINGS / f"{name}.pickle"
    if not path.exists():
        pytest.skip(f"no recording {name}: set XMEM_SHARED to the folder that holds data/snapshots")
    return path


def recorded_reserved_bytes(recorded: RecordedDevice, start_bytes: int) -> np.ndarray:
    """Reserved bytes after each event, from the events alone."""
    action = recorded.trace.action
    gained = np.isin(action, [RecordedAction.SEGMENT_ALLOC, RecordedAction.SEGMENT_MAP])
    lost = np.isin(action, [RecordedAction.SEGMENT_FREE, RecordedAction.SEGMENT_UNMAP])
    sizes = recorded.trace.size_bytes
    return start_bytes + np.cumsum(np.where(gained, sizes, 0) - np.where(lost, sizes, 0))


@pytest.mark.parametrize(("name", "device", "peak_reserved"), EMPTY_START + WARM_START)
def test_every_event_and_the_end_agree(name: str, device: int, peak_reserved: int) -> None:
    snapshot = read_snapshot(recording(name))
    recorded = snapshot.devices[device]
    options = snapshot.allocator_options("2.6")
    start = state_before(recorded, options)
    assert (len(start.segment_address) == 0) == ((name, device, peak_reserved) in EMPTY_START)

    result = replay_recording(recorded, options)

    assert result.difference is None
    start_bytes = int(start.segment_bytes.sum())
    assert np.array_equal(result.reserved_bytes, recorded_reserved_bytes(recorded, start_bytes))
    assert max(start_bytes, result.reserved_bytes.max()) == peak_reserved
    for column in (
        "segment_address",
        "segment_bytes",
        "segment_stream",
        "segment_pool",
        "block_address",
        "block_bytes",
        "block_requested_bytes",
        "block_state",
    ):
        assert np.array_equal(getattr(result.state, column), getattr(recorded.state, column)), column


@pytest.mark.parametrize(("name", "device", "peak_reserved"), EMPTY_START[:5])
@pytest.mark.parametrize("version", ["2.6", "2.13"])
def test_without_the_recorded_addresses_the_peak_is_the_same(
    name: str, device: int, peak_reserved: int, version: str
) -> None:
    """What an estimate does: the lifetimes as recorded, but addresses of the device model."""
    trace = read_snapshot(recording(name)).devices[device].trace
    alloc, free, size = [], [], []
    live: dict[int, int] = {}
    for event, (action, address) in enumerate(zip(trace.action, trace.address, strict=True)):
        if action == RecordedAction.ALLOC:
            live[int(address)] = len(alloc)
            alloc.append(event)
            free.append(np.iinfo(np.int64).max)
            size.append(int(trace.size_bytes[event]))
        elif action == RecordedAction.FREE_COMPLETED:
            free[live.pop(int(address))] = event
    result = replay(make_requests(alloc, free, size), options=parse("", version))
    assert result.peak_reserved.bytes == peak_reserved


def test_numbers_that_no_allocator_made_are_refused() -> None:
    snapshot = read_snapshot(recording("multi_stream_expandable_warm"))
    with pytest.raises(TraceError, match="multiples of 512"):
        replay_recording(snapshot.devices[0], snapshot.allocator_options("2.6"))
