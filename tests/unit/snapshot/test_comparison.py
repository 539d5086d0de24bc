import os
from pathlib import Path

import pytest

from snapshot_samples import BASE, MIB, snapshot, write
from xmem.errors import ConfigError, TraceError
from xmem.snapshot.comparison import compare
from xmem.snapshot.snapshot import Event, RecordedAction, read_snapshot

ROOT = Path(__file__).parents[3]
RECORDINGS = Path(os.environ.get("XMEM_SHARED", ROOT / ".." / "shared")) / "data" / "snapshots"


def test_the_first_rules_that_agree_are_named(tmp_path: Path) -> None:
    comparison = compare(read_snapshot(write(tmp_path / "s.pickle", snapshot())))
    assert comparison.agrees
    assert (comparison.rules.torch_version, comparison.rules.given) == ("2.8", False)
    assert comparison.rejected == ()
    (device,) = comparison.devices
    assert (device.events, device.agreed_events, device.start_reserved_bytes) == (5, 5, 0)
    assert (device.peak_reserved_bytes, device.final_reserved_bytes) == (20 * MIB, 20 * MIB)
    assert device.around == {}


def test_each_set_of_rules_is_tried_once_before_they_are_said_to_differ(tmp_path: Path) -> None:
    comparison = compare(read_snapshot(write(tmp_path / "s.pickle", snapshot(22 * MIB))))
    assert not comparison.agrees
    ties = [comparison.rules.tie_break, *(rules.tie_break for rules in comparison.rejected)]
    assert ties == ["address", "object_age", "segment_age"]
    (device,) = comparison.devices
    assert device.difference is not None
    assert (device.difference.event, device.agreed_events, device.peak_reserved_bytes) == (0, 0, 0)
    assert list(device.around) == [0, 1, 2, 3]
    assert device.around[0] == Event(RecordedAction.SEGMENT_ALLOC, BASE, 22 * MIB, 0)


def test_a_warm_start_counts_in_the_peak(tmp_path: Path) -> None:
    content = snapshot()
    del content["device_traces"][0][:2]
    (device,) = compare(read_snapshot(write(tmp_path / "s.pickle", content))).devices
    assert device.difference is None
    assert (device.start_reserved_bytes, device.peak_reserved_bytes) == (20 * MIB, 20 * MIB)


def test_settings_given_win_over_those_of_the_file(tmp_path: Path) -> None:
    content = snapshot()
    content["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    read = read_snapshot(write(tmp_path / "s.pickle", content))
    with pytest.raises(TraceError, match="cannot be replayed"):
        compare(read)
    comparison = compare(read, alloc_conf="max_split_size_mb:128", torch_version="2.6")
    assert comparison.agrees
    assert (comparison.alloc_conf, comparison.rules.given) == ("max_split_size_mb:128", True)


def test_releases_that_lack_a_key_are_not_tried(tmp_path: Path) -> None:
    read = read_snapshot(write(tmp_path / "s.pickle", snapshot()))
    assert compare(read, alloc_conf="throw_on_cudamalloc_oom:True").rules.torch_version == "2.12"
    with pytest.raises(ConfigError, match="no_such_key"):
        compare(read, alloc_conf="no_such_key:1")


def test_a_snapshot_without_events_is_refused(tmp_path: Path) -> None:
    content = snapshot()
    content["device_traces"] = [[]]
    with pytest.raises(TraceError, match="_record_memory_history"):
        compare(read_snapshot(write(tmp_path / "s.pickle", content)))


def test_a_recording_of_an_older_release_is_told_from_newer_rules() -> None:
    path = RECORDINGS / "train_empty_start_200_amp.pickle"
    if not path.exists():
        pytest.skip("no recording: set XMEM_SHARED to the folder that holds data/snapshots")
    read = read_snapshot(path)
    assert compare(read).rules.tie_break == "address"
    (device,) = compare(read, torch_version="2.12").devices
    assert device.difference is not None
    assert (device.events, device.agreed_events) == (12_976, 300)


def test_settings_of_another_run_are_named_as_what_is_wrong() -> None:
    path = RECORDINGS / "train_empty_start_100.pickle"
    if not path.exists():
        pytest.skip("no recording: set XMEM_SHARED to the folder that holds data/snapshots")
    with pytest.raises(TraceError, match=r"settings round a request of .* --alloc-conf"):
        compare(read_snapshot(path), alloc_conf="roundup_power2_divisions:4")
