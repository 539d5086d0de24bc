"""The long run: random requests over random settings through every torch that ``XMEM_PHANTOM_PYTHONS`` names.

From ``tests``: ``python -m oracle --settings 60 --requests 20000``. Ends with 1 if anything differed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from oracle.comparison import first_difference
from oracle.real_allocator import CONTEXT_BYTES, Setting, TorchError, run_torch, version_of
from oracle.recordings import requests_of
from oracle.sequences import random_requests, random_setting
from xmem.simulation.alloc_conf import release_of
from xmem.simulation.replay import Requests, replay
from xmem.snapshot.snapshot import read_snapshot


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__)
    parser.add_argument("--settings", type=int, default=60, help="settings for each torch")
    parser.add_argument("--requests", type=int, default=20_000, help="requests for each setting")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--expandable", choices=["yes", "no", "either"], default="either")
    parser.add_argument("--snapshots", type=Path, help="folder of recordings instead of random requests")
    parser.add_argument("--python", action="append", help="instead of XMEM_PHANTOM_PYTHONS")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    pythons = asked.python or [p for p in os.environ.get("XMEM_PHANTOM_PYTHONS", "").split(":") if p]
    wrong = 0
    for python in pythons:
        started = time.monotonic()
        with ThreadPoolExecutor(asked.jobs) as pool:
            outcomes = list(pool.map(partial(compare, python), cases(asked, python)))
        equal = [outcome for outcome in outcomes if outcome is not None]
        wrong += len(outcomes) - len(equal)
        totals = sum(equal, Counter())
        print(
            f"torch {version_of(python)}: {len(equal)} of {len(outcomes)} sequences equal,"
            f" {time.monotonic() - started:.0f} s;",
            ", ".join(f"{name} {total:,}" for name, total in totals.items()),
            flush=True,
        )
    return 1 if wrong or not pythons else 0


@dataclass(frozen=True)
class Case:
    """One sequence under one setting; the requests are made when they are needed."""

    name: str
    setting: Setting
    requests: Callable[[], Requests]


def cases(asked: argparse.Namespace, python: str) -> list[Case]:
    """What the command line asks for."""
    if asked.snapshots:
        return [case for path in sorted(asked.snapshots.glob("*.pickle")) for case in recorded_cases(path)]
    expandable = {"yes": True, "no": False, "either": None}[asked.expandable]
    found = []
    for seed in range(asked.first_seed, asked.first_seed + asked.settings):
        setting = random_setting(seed, release_of(version_of(python)), expandable=expandable)
        requests = partial(random_requests, seed, asked.requests, setting, release_of(version_of(python)))
        found.append(Case(f"seed {seed}", setting, requests))
    return found


def recorded_cases(path: Path) -> list[Case]:
    """Each device of a recording: with much memory, with expandable segments, and with hardly enough."""
    found = []
    for number, device in read_snapshot(path).devices.items():
        if len(device.trace) == 0:
            continue
        requests = requests_of(device)
        peak = replay(requests).peak_requested.bytes
        for alloc_conf, room in (("", 2.0), ("expandable_segments:True", 2.0), ("", 1.02)):
            capacity = CONTEXT_BYTES + int(peak * room) + (32 << 20)
            setting = Setting(alloc_conf, None, capacity, tensors=True)
            found.append(Case(f"{path.stem} device {number}", setting, lambda requests=requests: requests))
    return found


def compare(python: str, case: Case) -> Counter[str] | None:
    """What an equal run did; where it was not equal None, and the first difference in print."""
    requests = case.requests()
    count = len(requests)
    looks = sorted({*range(0, count, max(count // 10, 1)), count - 1})
    with tempfile.TemporaryDirectory() as folder:
        try:
            real = run_torch(python, Path(folder), case.setting, requests, looks)
            difference = first_difference(requests, case.setting, real)
            text = difference.text if difference else ""
        except TorchError as failed:
            text = str(failed)
    if text:
        print(f"{case.name}, {python}, {case.setting}\n{text}", flush=True)
        return None
    last = dict(zip(real.names, real.counters[-1].tolist(), strict=True))
    shown = [name for name in real.names if name.startswith("num_")]
    return Counter({"requests": count} | {name: last[name] for name in shown})


if __name__ == "__main__":
    sys.exit(main())
