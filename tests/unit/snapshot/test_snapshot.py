import copy
import os
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmem.errors import TraceError
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.replay import BlockState
from xmem.snapshot.snapshot import MemoryTrace, RecordedAction, read_snapshot, replay_recording

MIB = 1 << 20
BASE = 1 << 30


def entry(action: str, addr: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 7, "frames": []}


SNAPSHOT: dict[str, Any] = {
    "segments": [
        {
            "device": 0,
            "address": BASE,
            "total_size": 20 * MIB,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "blocks": [
                {
                    "address": BASE,
                    "size": 3 * MIB,
                    "requested_size": 3 * MIB - 5,
                    "state": "active_allocated",
                },
                {"address": BASE + 3 * MIB, "size": 17 * MIB, "requested_size": 99, "state": "inactive"},
            ],
        }
    ],
    "device_traces": [
        [
            entry("segment_alloc", BASE, 20 * MIB),
            entry("alloc", BASE, 3 * MIB - 5),
            entry("alloc", BASE + 3 * MIB, 4 * MIB),
            entry("snapshot", 0, 0),
            entry("free_requested", BASE + 3 * MIB, 4 * MIB),
            entry("free_completed", BASE + 3 * MIB, 4 * MIB),
            {"action": "oom", "device_free": 5, "size": MIB, "stream": 0, "time_us": 8},
        ]
    ],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"},
}


def write(path: Path, content: object) -> Path:
    file = path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(content))
    return file


def test_a_snapshot_becomes_columns(tmp_path: Path) -> None:
    snapshot = read_snapshot(write(tmp_path, SNAPSHOT))
    device = snapshot.devices[0]
    assert device.trace.action.tolist() == [
        RecordedAction.SEGMENT_ALLOC,
        RecordedAction.ALLOC,
        RecordedAction.ALLOC,
        RecordedAction.OTHER,
        RecordedAction.FREE_REQUESTED,
        RecordedAction.FREE_COMPLETED,
        RecordedAction.OOM,
    ]
    assert device.trace.address.tolist()[-1] == 5
    assert device.trace.time_us.tolist()[0] == 7
    assert device.state.segment_bytes.tolist() == [20 * MIB]
    assert device.state.block_state.tolist() == [BlockState.ALLOCATED, BlockState.FREE]
    assert device.state.block_requested_bytes.tolist() == [3 * MIB - 5, 0]
    assert snapshot.allocator_options("2.6").max_split_bytes == 128 * MIB


def test_a_recording_is_replayed_and_the_first_difference_named(tmp_path: Path) -> None:
    content = copy.deepcopy(SNAPSHOT)
    del content["device_traces"][0][-1]
    snapshot = read_snapshot(write(tmp_path, content))
    assert replay_recording(snapshot.devices[0], snapshot.allocator_options()).difference is None

    content["device_traces"][0][0]["size"] = 22 * MIB
    content["segments"][0]["total_size"] = 22 * MIB
    content["segments"][0]["blocks"][1]["size"] = 19 * MIB
    snapshot = read_snapshot(write(tmp_path, content))
    difference = replay_recording(snapshot.devices[0], snapshot.allocator_options()).difference
    assert difference is not None
    assert difference.event == 0
    assert difference.recorded is not None
    assert difference.recorded.size_bytes == 22 * MIB


def test_a_file_that_would_import_is_refused(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch should-not-exist",)

    with pytest.raises(TraceError, match=r"asks to import posix\.system: refused") as caught:
        read_snapshot(write(tmp_path, {"segments": [Hostile()]}))
    assert caught.value.path is not None
    assert not Path("should-not-exist").exists()


def test_a_file_cut_short_is_named_with_its_length(tmp_path: Path) -> None:
    file = write(tmp_path, SNAPSHOT)
    content = file.read_bytes()
    for length in (0, 1, 20, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        with pytest.raises(TraceError, match="cut short") as caught:
            read_snapshot(file)
        assert caught.value.byte_offset == length


@pytest.mark.parametrize(
    "content", [b'{"traceEvents": []}', b'\n{\n "traceEvents": []}', b"[{}]", b"\x1f\x8b\x08\x00"]
)
def test_a_trace_is_sent_to_the_command_for_traces(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(TraceError, match="xmem-fast estimate"):
        read_snapshot(file)


@pytest.mark.parametrize("content", [b"not a pickle", b"\x80\x05K\x01", b"\x80\xff.", b"0."])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "other.bin"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=r"pickle|cut short"):
        read_snapshot(file)


def without(content: dict[str, Any], *path: Any) -> dict[str, Any]:
    changed = copy.deepcopy(content)
    target: Any = changed
    for key in path[:-1]:
        target = target[key]
    del target[path[-1]]
    return changed


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("device_traces",), "no list 'device_traces'"),
        (("segments",), "no list 'segments'"),
        (("device_traces", 0, 2, "size"), "entry 2 of .* no usable 'size'"),
        (("device_traces", 0, 2, "action"), "entry 2 of .* no usable 'action'"),
        (("segments", 0, "address"), "no number 'address'"),
        (("segments", 0, "segment_type"), "no usable 'segment_type'"),
        (("segments", 0, "blocks", 1, "size"), "no number 'size'"),
        (("segments", 0, "blocks", 1, "state"), "entry 1 of .* no usable 'state'"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, path: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_snapshot(write(tmp_path, without(SNAPSHOT, *path)))


@pytest.mark.parametrize("content", [[], None, 7, {"segments": 5, "device_traces": []}])
def test_what_is_of_another_type_is_named(tmp_path: Path, content: object) -> None:
    with pytest.raises(TraceError, match="snapshot"):
        read_snapshot(write(tmp_path, content))


def test_a_number_that_fits_no_column_is_named(tmp_path: Path) -> None:
    content = copy.deepcopy(SNAPSHOT)
    content["device_traces"][0][1]["size"] = 1 << 70
    with pytest.raises(TraceError, match="entry 1 of"):
        read_snapshot(write(tmp_path, content))


def test_blocks_that_do_not_fill_their_segment_are_not_replayed(tmp_path: Path) -> None:
    content = copy.deepcopy(SNAPSHOT)
    content["segments"][0]["blocks"].pop()
    snapshot = read_snapshot(write(tmp_path, content))
    with pytest.raises(TraceError, match="do not fill"):
        replay_recording(snapshot.devices[0], snapshot.allocator_options())


def of_private_pool(content: dict[str, Any], *, events_name_it: bool) -> dict[str, Any]:
    """The same, but everything happens in the private pool (0, 3)."""
    content = copy.deepcopy(content)
    content["segments"][0]["segment_pool_id"] = (0, 3)
    if events_name_it:
        for event in content["device_traces"][0]:
            event["pool_id"] = (0, 3)
    return content


@pytest.mark.parametrize("events_name_it", [True, False], ids=["torch 2.9", "torch 2.6"])
def test_events_of_private_pools_are_found_and_replayed(tmp_path: Path, events_name_it: bool) -> None:
    device = read_snapshot(write(tmp_path, of_private_pool(SNAPSHOT, events_name_it=events_name_it))).devices[
        0
    ]
    assert device.mempool_id == ((0, 3),)
    assert device.state.segment_mempool.tolist() == [1]
    in_pool = np.isin(device.trace.action, [RecordedAction.ALLOC, RecordedAction.SEGMENT_ALLOC])
    assert np.all(device.trace.mempool[in_pool] == 1)
    before = replace(device, trace=rows_of(device.trace, slice(0, 6)))  # without its out of memory
    replayed = replay_recording(before, AllocatorOptions())
    assert replayed.difference is None
    assert replayed.state.segment_mempool.tolist() == [1]


def test_private_pools_do_not_serve_one_another(tmp_path: Path) -> None:
    content = of_private_pool(SNAPSHOT, events_name_it=True)
    content["device_traces"][0][2]["pool_id"] = (0, 0)  # what it cannot be: the segment is of pool (0, 3)
    replayed = replay_recording(read_snapshot(write(tmp_path, content)).devices[0], AllocatorOptions())
    assert replayed.difference is not None
    assert replayed.difference.event == 2


def test_an_unusable_id_of_a_pool_is_named(tmp_path: Path) -> None:
    content = of_private_pool(SNAPSHOT, events_name_it=True)
    content["device_traces"][0][1]["pool_id"] = 7
    with pytest.raises(TraceError, match=r"entry 1 of .* no usable 'pool_id'"):
        read_snapshot(write(tmp_path, content))


def rows_of(trace: MemoryTrace, rows: slice) -> MemoryTrace:
    return MemoryTrace(**{f.name: getattr(trace, f.name)[rows] for f in fields(MemoryTrace)})
