"""Random programs on the phantom GPU, and their history replayed: all gauges and peaks are those of torch."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import xmem
from oracle.comparison import options_of
from oracle.real_allocator import CONTEXT_BYTES, Setting, TorchError
from xmem.devices.gpus import custom_device
from xmem.phantom.environment import phantom_environment, prepare
from xmem.run.allocator_history import AllocatorHistory, allocator_history
from xmem.simulation.replay import RequestKind, Requests, make_requests, replay
from xmem.trace.blocks import CUDA, NEVER, BlockTable
from xmem.trace.notes import DeviceRequests

DRIVER = Path(__file__).with_name("drive_programs.py")
CHILD = Path(xmem.__file__).parent / "capture" / "child"
MIB = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """What became of the programs of one process.

    Attributes:
        programs: How many were compared.
        requests: Of all of them.
        calls: By kind, of all of them.
        difference: Of the first program that differs, for people; None where none does.
    """

    programs: int
    requests: int
    calls: dict[str, int]
    difference: str | None


def random_setting(seed: int) -> tuple[Setting, int, bool]:
    """A setting, the number of devices, and whether programs capture graphs."""
    rng = random.Random(f"programs {seed}")
    parts = []
    expandable = rng.random() < 0.25
    if expandable:
        parts.append("expandable_segments:True")
    if rng.random() < 0.25:
        parts.append(f"max_split_size_mb:{rng.choice([21, 32, 64])}")
    if rng.random() < 0.2:
        parts.append(f"roundup_power2_divisions:{rng.choice([2, 4, 8])}")
    capacity = rng.choice([8 << 30, 8 << 30, 8 << 30, 1 << 30, 600 * MIB])
    fraction = rng.choice([None, None, None, 0.1, 0.5])
    if fraction is not None and rng.random() < 0.6:
        parts.append(f"garbage_collection_threshold:{rng.choice([0.2, 0.5, 0.8])}")
    # PyTorch counts mappings of an expandable segment of a pool, not what they map, and loses count; and
    # before 2.9 the history does not tell whose they are.
    pools = not expandable
    setting = Setting(",".join(parts), fraction, CONTEXT_BYTES + capacity, tensors=True, pools=pools)
    return setting, rng.choice([1, 1, 2]), pools and rng.random() < 0.7


def run_programs(
    python: str, folder: Path, seed: int, programs: int, setting: Setting, devices: int, captures: bool
) -> Outcome:
    """Run programs in one process and compare their replay.

    Raises:
        TorchError: The process did not end well.
    """
    plan = {
        "seed": seed,
        "programs": programs,
        "devices": devices,
        "captures": captures,
        "pools": setting.pools,
        "memory_fraction": setting.memory_fraction,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    device = replace(
        custom_device(1 << 40), total_memory_bytes=setting.capacity_bytes, context_bytes=CONTEXT_BYTES
    )
    prepare(folder, [device] * devices)
    environment = phantom_environment(folder, os.environ)
    environment |= {"PYTORCH_CUDA_ALLOC_CONF": setting.alloc_conf, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [python, str(DRIVER), str(folder), str(CHILD)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise TorchError(f"exit status {ran.returncode}\n{ran.stderr[-4000:]}")
    return compare(json.loads((folder / "answer.json").read_text()), setting)


def compare(answer: dict[str, Any], setting: Setting) -> Outcome:
    """Replay the history of each device, and look at each end of a program."""
    count, calls = 0, dict.fromkeys((kind.name for kind in RequestKind), 0)
    for kept in answer["requests"]:
        requests = requests_of(kept)
        count += len(requests)
        for kind, number in zip(*np.unique(requests.kind, return_counts=True), strict=True):
            calls[RequestKind(kind).name] += int(number)
        difference = _difference(requests, kept["device"], answer, setting)
        if difference is not None:
            return Outcome(len(answer["seen"]), count, calls, difference)
    return Outcome(len(answer["seen"]), count, calls, None)


def requests_of(kept: dict[str, Any]) -> Requests:
    """The requests of a history, by way of the blocks of a trace that shows all of them."""
    order = np.array(kept["order"], np.int64)
    times = np.arange(len(order), dtype=np.int64) * 10
    free_ns = np.full(len(kept["address"]), NEVER, np.int64)
    free_ns[order[order >= 0]] = times[order >= 0]
    blocks = _blocks(kept, times[order < 0], free_ns)
    history = allocator_history([DeviceRequests(**kept)], blocks, CUDA, kept["device"])
    assert history is not None
    return _in_order(history)


def _blocks(kept: dict[str, Any], alloc_ns: Any, free_ns: Any) -> BlockTable:
    count = len(kept["address"])
    nothing = np.full(count, -1, np.int32)
    return BlockTable(
        address=np.array(kept["address"], np.int64),
        size_bytes=np.array(kept["size_bytes"], np.int64),
        alloc_ns=alloc_ns,
        free_ns=free_ns,
        device_type=np.full(count, CUDA, np.int8),
        device_index=np.full(count, kept["device"], np.int32),
        thread=nothing,
        alloc_event=nothing,
        free_event=nothing,
        flags=np.zeros(count, np.uint8),
        problems=(),
        core=None,  # type: ignore[arg-type]
    )


def _in_order(history: AllocatorHistory) -> Requests:
    return make_requests(
        history.alloc_ns,
        history.free_ns,
        history.size_bytes,
        history.stream,
        waits=history.waits,
        calls=history.calls,
        mempool=history.mempool,
        restores=history.restores,
    )


def _difference(requests: Requests, device: int, answer: dict[str, Any], setting: Setting) -> str | None:
    simulated = replay(
        requests,
        options=options_of(setting, answer["torch"]),
        capacity_bytes=setting.capacity_bytes,
        other_bytes=CONTEXT_BYTES,
        every_counter=True,
    )
    if simulated.oom is not None:
        return f"device {device} runs out of memory at request {simulated.oom}; {setting}"
    names = list(simulated.statistics)
    of_memory = np.flatnonzero((requests.kind == RequestKind.ALLOC) | (requests.kind == RequestKind.FREE))
    for program, seen in enumerate(answer["seen"]):
        if seen["device"] != device or not seen["served"]:
            continue
        request = int(of_memory[seen["position"] - 1])
        for gauge, values in seen["gauges"].items():
            ours = [
                int(simulated.counters[request, names.index(f"{gauge}.all.{which}")])
                for which in ("current", "peak")
            ]
            if ours != values:
                return (
                    f"device {device}, program {program}, request {request}: {gauge} (now, peak) are {ours}, "
                    f"torch has {values}; {setting}"
                )
    return None


def main() -> int:
    """The long run: ``python -m oracle.programs --processes 20 --programs 250``; 1 if anything differed."""
    parser = argparse.ArgumentParser(prog="oracle.programs", description=main.__doc__)
    parser.add_argument("--processes", type=int, default=20, help="for each torch")
    parser.add_argument("--programs", type=int, default=250, help="in each process")
    parser.add_argument("--first-seed", type=int, default=0)
    asked = parser.parse_args()
    wrong = programs = requests = 0
    pythons = [name for name in os.environ.get("XMEM_PHANTOM_PYTHONS", "").split(":") if name]
    for python in pythons:
        for seed in range(asked.first_seed, asked.first_seed + asked.processes):
            setting, devices, captures = random_setting(seed)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    outcome = run_programs(
                        python, Path(folder), seed, asked.programs, setting, devices, captures
                    )
                except TorchError as error:
                    print(f"seed {seed}: {error}", flush=True)  # torch's own; nothing to compare
                    continue
            programs += outcome.programs
            requests += outcome.requests
            if outcome.difference is not None:
                wrong += 1
                print(f"seed {seed}: {outcome.difference}", flush=True)
    print(f"{programs:,} programs, {requests:,} requests; {wrong} processes differ")
    return 1 if wrong or not pythons else 0


if __name__ == "__main__":
    sys.exit(main())
