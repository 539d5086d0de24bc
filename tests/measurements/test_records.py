"""What is written by the kit and read by the product: columns, histories, descriptions, damaged files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot_samples import MIB, snapshot
from xmem.devices.gpus import describe_device, find_device, read_device
from xmem.errors import TraceError
from xmem.simulation.alloc_conf import RULE_RELEASES
from xmem.simulation.alloc_conf import parse as parse_alloc_conf
from xmem.snapshot.snapshot import read_snapshot
from xmem.validation import TrainingPeak, load_measurements, replay_history
from xmem.validation.columns import unpack
from xmem_measure.columns import pack
from xmem_measure.describe import describe
from xmem_measure.history import History, Mark, requests_between
from xmem_measure.parts.nsight import launches

ROOT = Path(__file__).parents[2]
SNAPSHOTS = Path(os.environ.get("XMEM_SHARED", ROOT / ".." / "shared")) / "data" / "snapshots"

INT48 = st.integers(-(1 << 47), (1 << 47) - 1)


@settings(max_examples=30)
@given(st.lists(st.tuples(INT48, INT48)))
def test_columns_survive(rows: list[tuple[int, int]]) -> None:
    columns = {"a": [row[0] for row in rows], "b": [row[1] for row in rows]}
    packed = json.loads(json.dumps(pack(columns)))
    assert {name: column.tolist() for name, column in unpack(packed).items()} == columns


def test_damaged_columns_are_refused() -> None:
    packed = pack({"a": [1, 2, 3]})
    with pytest.raises(ValueError, match="the columns are damaged"):
        unpack({**packed, "data": packed["data"][:-5]})
    with pytest.raises(ValueError, match="the columns have 24 bytes, not 1 x 4 x 8"):
        unpack({**packed, "rows": 4})


def training_record(history: History, **changes: Any) -> dict[str, Any]:
    usage = {
        name: [1]
        for name in ("max_allocated_bytes", "max_reserved_bytes", "allocated_bytes", "reserved_bytes")
    }
    return {
        "schema": 1,
        "key": "k",
        "part": "training",
        "config": {"model": "VGG16", "optimizer": "SGD", "batch": 2},
        "environment": {"gpu": "A GPU", "torch": "2.13.0"},
        "driver": "",
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 1.0,
        "outcome": "done",
        "peak_allocated_bytes": 7 * MIB,
        "peak_reserved_bytes": 20 * MIB,
        "iterations": {"seconds": [0.5], **usage},
        "parameters": 3,
        "history": history.to_json(),
        **changes,
    }


def write(folder: Path, *records: object) -> Path:
    path = folder / "training.jsonl"
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    return folder


def loaded(folder: Path, history: History) -> TrainingPeak:
    (measurement,) = load_measurements(write(folder, training_record(history)))
    assert isinstance(measurement, TrainingPeak)
    return measurement


def test_a_recorded_history_replays(tmp_path: Path) -> None:
    (trace,) = snapshot()["device_traces"]
    measurement = loaded(tmp_path, History.from_trace(trace, complete=True))
    replay = replay_history(measurement)
    assert replay.difference is None
    assert replay.reserved_bytes.max() == measurement.peak_reserved_bytes
    assert replay.allocated_bytes.max() == measurement.peak_allocated_bytes
    different = snapshot(22 * MIB)["device_traces"][0]
    assert (
        replay_history(loaded(tmp_path, History.from_trace(different, complete=True))).difference is not None
    )


@pytest.mark.parametrize(
    "name", ["train_empty_start_100", "train_empty_start_200_amp", "tiny_grad_empty_start"]
)
def test_histories_of_real_gpus_survive(tmp_path: Path, name: str) -> None:
    files = sorted(SNAPSHOTS.glob(f"{name}*"))
    if not files:
        pytest.skip(f"no {name} in {SNAPSHOTS}")
    recorded = read_snapshot(files[0]).devices[0].trace
    history = History()
    names = ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"]
    for row in range(len(recorded)):
        history.append(
            names[recorded.action[row]],
            int(recorded.address[row]),
            int(recorded.size_bytes[row]),
            int(recorded.stream[row]),
            int(recorded.time_us[row]),
        )
    measurement = loaded(tmp_path, history)
    again = measurement.history()
    for column in ("action", "address", "size_bytes", "stream", "time_us"):
        np.testing.assert_array_equal(getattr(again, column), getattr(recorded, column))
    all_rules = [parse_alloc_conf("", version) for version in RULE_RELEASES]
    assert any(replay_history(measurement, rules).difference is None for rules in all_rules)
    # Tens of kilobytes for some ten thousand events.
    assert len(json.dumps(history.to_json())) < 3 * len(recorded) + 1000


def test_an_incomplete_history_is_not_replayed(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"training.jsonl:1: the history is not complete"):
        replay_history(loaded(tmp_path, History(complete=False)))


def test_requests_between_two_moments() -> None:
    history = History()
    events = (
        ("alloc", 1, 10),
        ("alloc", 2, 20),
        ("free_completed", 1, 10),
        ("alloc", 1, 30),
        ("free_completed", 2, 20),
    )
    for action, address, size in events:
        history.append(action, address, size, 0, 0)
    assert requests_between(history, [(Mark(1, 0), Mark(3, 2)), (Mark(3, 2), Mark(3, 2))]) == [
        [20, 30, -1],
        [],
    ]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: not a JSON object"),
        ({"schema": 9}, "line 2: the schema is 9, but this xMem reads 1"),
        ({"key": None}, "line 2: None must be text"),
        ({"part": "baking"}, "line 2: part must be one of device"),
        ({"outcome": "fine"}, "line 2: outcome must be one of"),
        ({"history": None}, "line 2: None must be an object"),
        ({"peak_reserved_bytes": -1}, "line 2: -1 must be a whole number"),
        ({"iterations": {}}, "line 2: the key 'seconds' is missing"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, record: Any, message: str) -> None:
    good = training_record(History())
    bad = {**good, **record} if isinstance(record, dict) else record
    with pytest.raises(TraceError) as raised:
        load_measurements(write(tmp_path, good, bad))
    assert str(raised.value).startswith(str(tmp_path / "training.jsonl"))
    assert message in str(raised.value)


def test_damaged_histories_are_named_when_they_are_read(tmp_path: Path) -> None:
    record = training_record(History())
    record["history"]["events"]["data"] = "!"
    (measurement,) = load_measurements(write(tmp_path, record))
    assert isinstance(measurement, TrainingPeak)
    with pytest.raises(TraceError, match=r"training.jsonl:1: the columns are damaged"):
        measurement.history()


def test_the_last_try_of_a_run_counts(tmp_path: Path) -> None:
    failed = training_record(History(), outcome="failed", error="RuntimeError: no")
    del failed["iterations"]
    (measurement,) = load_measurements(write(tmp_path, failed, training_record(History())))
    assert (measurement.outcome, measurement.where) == ("done", f"{tmp_path / 'training.jsonl'}:2")


def test_a_measured_device_is_a_description_that_the_product_reads(tmp_path: Path) -> None:
    known = find_device("h200")
    record = {
        "environment": {"torch": "2.11.0"},
        "driver": "580.1",
        "nvml_total_bytes": 150_754_820_096,
        "reserved_bytes": 2 * MIB,
        "device_memory": {"source": "nvml", "context_bytes": 500 * MIB, "kernels_bytes": 532 * MIB},
        "properties": {
            "name": "NVIDIA H200",
            "major": 9,
            "minor": 0,
            "multi_processor_count": 132,
            "total_memory": known.total_memory_bytes,
        },
        "attributes": {**known.attributes, "MultiProcessorCount": 132, "PciBusId": 4},
    }
    path = tmp_path / "device.toml"
    path.write_text(describe(record))
    device = read_device(path)
    assert (device.context_bytes, device.loaded_kernels_bytes) == (530 * MIB, 30 * MIB)
    assert (device.architecture, device.compute_capability) == ("Hopper", (9, 0))
    assert device.attributes == known.attributes
    assert set(device.attribute_bases.values()) == {"measured"}
    path.write_text(describe_device(device))
    assert read_device(path) == device


def test_what_nsight_compute_prints() -> None:
    printed = """==PROF== Connected to process 7
"ID","Kernel Name","gpu__time_duration.sum","launch__block_size",\
"sm__warps_active.avg.pct_of_peak_sustained_active"
"","","nsecond","",""
"0","void gemm<float, 2>(int)","1,234.5","256","12.5"
"1","relu","10","32","n/a"
"2","relu","11","32","100"
"""
    result = launches(printed)
    columns = {name: column.tolist() for name, column in unpack(result["launches"]).items()}
    assert result["kernels"] == ["void gemm<float, 2>(int)", "relu"]
    assert columns["kernel"] == [0, 1, 1]
    assert columns["duration_ns"] == [1234, 10, 11]
    assert columns["active_ppm"] == [125_000, -1, 1_000_000]
    assert columns["limit_warps"] == [-1, -1, -1]
