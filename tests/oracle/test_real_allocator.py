"""The simulator equals the caching allocator of every torch here, after every request.

A minute's worth; ``python -m oracle`` from ``tests`` does as much as it is told. ``XMEM_PHANTOM_PYTHONS``
names the Pythons, as for the other tests of the phantom GPU; without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from nightly import most_nightly
from oracle.comparison import first_difference
from oracle.real_allocator import CONTEXT_BYTES, Setting, TorchError, run_torch, version_of
from oracle.recordings import requests_of
from oracle.sequences import random_requests, random_setting
from xmem.devices.gpus import find_device
from xmem.errors import ConfigError
from xmem.phantom.environment import phantom_environment, prepare
from xmem.simulation import alloc_conf
from xmem.simulation.alloc_conf import release_of
from xmem.snapshot.snapshot import read_snapshot, replay_recording

PYTHONS = [name for name in os.environ.get("XMEM_PHANTOM_PYTHONS", "").split(":") if name]
ROOT = Path(__file__).parents[2]
RECORDINGS = Path(os.environ.get("XMEM_SHARED", ROOT / ".." / "shared")) / "data" / "snapshots"

pytestmark = pytest.mark.skipif(not PYTHONS, reason="no CUDA build of torch here")


def run_and_compare(python, folder, setting, requests):
    real = run_torch(python, folder, setting, requests, [len(requests) // 2, len(requests) - 1])
    difference = first_difference(requests, setting, real)
    assert difference is None, f"{setting}\n{difference.text}"
    return real


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("seed", most_nightly(range(5), at_once=2))
def test_random_requests(python, seed, tmp_path):
    release = release_of(version_of(python))
    setting = random_setting(seed, release, expandable=seed % 2 == 1)
    real = run_and_compare(python, tmp_path, setting, random_requests(seed, 4000, setting, release))
    assert real.counters[-1, real.names.index("num_device_alloc")] > 10


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("name", "alloc_conf"),
    [("train_empty_start_200_amp", ""), ("warm_10_streams", "expandable_segments:True")],
)
def test_recorded_requests(python, name, alloc_conf, tmp_path):
    path = RECORDINGS / f"{name}.pickle"
    if not path.exists():
        pytest.skip(f"no recording {name}: set XMEM_SHARED to the folder that holds data/snapshots")
    requests = requests_of(read_snapshot(path).devices[0])
    run_and_compare(
        python, tmp_path, Setting(alloc_conf, None, CONTEXT_BYTES + (80 << 30), tensors=True), requests
    )


@pytest.mark.parametrize("python", PYTHONS)
def test_pages_that_the_driver_cannot_map(python, tmp_path):
    if release_of(version_of(python)) < (2, 10):
        pytest.skip("this release has no large_segment_size_mb")
    setting = Setting("large_segment_size_mb:11,expandable_segments:True", None, 1 << 30, tensors=False)
    requests = random_requests(0, 100, setting, release_of(version_of(python)))
    with pytest.raises(TorchError, match="CUDA driver error: invalid argument"):
        run_torch(python, tmp_path, setting, requests)
    with pytest.raises(ConfigError, match="an even number"):
        alloc_conf.parse(setting.alloc_conf, version_of(python))


RECORD_POOLS = """
import sys, torch
MIB = 1 << 20
tensor = lambda mib: torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
torch.cuda.memory._record_memory_history(stacks="python")
outside, cached = tensor(30), tensor(3)
del cached
kept, pool = [], torch.cuda.MemPool()
for mib in (0.5, 3, 40, 0.25):
    with torch.cuda.use_mem_pool(pool):
        kept.append(tensor(mib))
        tensor(2 * mib)
    kept.append(tensor(mib / 2))
graph, used = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.graph(graph):
    inside = tensor(5)
    for _ in range(3):
        inside = inside + 1
outside.record_stream(used)
del outside
tensor(1)
torch.cuda.empty_cache()
if sys.argv[2] == "release":
    del kept, inside
    graph.reset()
    torch.cuda.empty_cache()
    del pool
last = tensor(7)
torch.cuda.memory._dump_snapshot(sys.argv[1])
"""


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("conf", most_nightly(["expandable_segments:True", "", "max_split_size_mb:32"]))
def test_a_recording_of_pools_and_graphs_is_replayed(python, conf, tmp_path):
    prepare(tmp_path, [find_device("rtx-3060")])
    environment = phantom_environment(tmp_path, os.environ) | {"PYTORCH_CUDA_ALLOC_CONF": conf}
    # Before 2.9 events do not name their pools: those of segments that were given back are not known.
    ends = "release" if release_of(version_of(python)) >= (2, 9) else "keep"
    command = [python, "-W", "ignore", "-c", RECORD_POOLS, str(tmp_path / "s.pickle"), ends]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    device = read_snapshot(tmp_path / "s.pickle").devices[0]
    assert len(device.mempool_id) == 2
    replayed = replay_recording(device, alloc_conf.parse(conf, version_of(python)))
    assert replayed.difference is None
    assert replayed.state.segment_mempool.tolist() == device.state.segment_mempool.tolist()
    assert replayed.state.block_bytes.tolist() == device.state.block_bytes.tolist()


TEXTS = [
    *(f"max_split_size_mb:{mib}" for mib in (0, 19, 20, 21, 64)),
    *(f"max_non_split_rounding_mb:{mib}" for mib in (19, 20, 21)),
    *(f"large_segment_size_mb:{mib}" for mib in (10, 11)),
    *(f"garbage_collection_threshold:{threshold}" for threshold in (0, 0.5, 1, "x")),
    *(f"per_process_memory_fraction:{fraction}" for fraction in (0, 0.5, 1, 1.1)),
    *(f"roundup_power2_divisions:{divisions}" for divisions in (0, 1, 2, 3, 1024)),
    *("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", "roundup_power2_divisions:[>:4]"),
    *("roundup_power2_divisions:[3:2]", "roundup_power2_divisions:[4:0]", "roundup_power2_divisions:[]"),
    *("roundup_power2_divisions:[256:4,1:8]", "roundup_power2_divisions:[131072:4]"),
    *("roundup_power2_divisions:[256 : 1, > : 4,512:8]", "roundup_power2_divisions:[256:4,>:0]"),
    *("expandable_segments:true", "expandable_segments:True", "throw_on_cudamalloc_oom:True"),
    *("large_segment_size_mb:50,max_split_size_mb:40", "max_split_size_mb:40,large_segment_size_mb:50"),
    *("", ",", "max_split_size_mb:64,", ",max_split_size_mb:64", "max_split_size_mb", "max_split_size_mb:"),
    *("max_split_size_mb:64,,expandable_segments:True", "max_split_size_mb:64,max_split_size_mb:128"),
    *("nonsense:1", "backend:native", "backend:foo", "release_lock_on_cudamalloc:1"),
    *("pinned_use_background_threads:True", "pinned_num_register_threads:4"),
    *("pinned_reserve_segment_size_mb:10", "pinned_free_catch_all:True", "pinned_max_cached_size_mb:1"),
    *("graph_capture_record_stream_reuse:True", "expandable_segments_reserve:1"),
]
READ_SETTINGS = """
import json, sys, torch
read = {}
for text in json.loads(sys.argv[1]):
    try:
        torch.cuda.memory._set_allocator_settings(text)
    except Exception:
        read[text] = None
        continue
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    read[text] = [
        settings["max_split_size"],
        settings["garbage_collection_threshold"],
        settings["expandable_segments"],
        list(settings["roundup_power2_divisions"].values()),
    ]
    # What is not reset by reading again.
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    if "large" in text:
        torch.cuda.memory._set_allocator_settings("large_segment_size_mb:20")
print(json.dumps(read))
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_settings_are_read_as_torch_reads_them(python, tmp_path):
    prepare(tmp_path, [find_device("rtx-3060")])
    ran = subprocess.run(
        [python, "-W", "ignore", "-c", READ_SETTINGS, json.dumps(TEXTS)],
        env=phantom_environment(tmp_path, os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(ran.stdout.splitlines()[-1])
    ours = {text: read_here(text, version_of(python)) for text in TEXTS}
    assert ours == theirs


def read_here(text, torch_version):
    try:
        options = alloc_conf.parse(text, torch_version)
    except ConfigError:
        return None
    return [
        -1 if options.max_split_bytes is None else options.max_split_bytes,
        options.garbage_collection_threshold,
        options.expandable_segments,
        list(options.roundup_power2_divisions),
    ]
