"""The long run: random requests over random settings through every torch that ``XMEM_PHANTOM_PYTHONS`` names.

From ``tests``: ``python -m oracle --settings 60 --requests 20000``. Ends with 1 if anything differed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from oracle.comparison import first_difference
from oracle.real_allocator import TorchFailed, run_torch
from oracle.sequences import random_requests, random_setting
from xmem.alloc_conf import release_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__)
    parser.add_argument("--settings", type=int, default=60, help="settings for each torch")
    parser.add_argument("--requests", type=int, default=20_000, help="requests for each setting")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--expandable", choices=["yes", "no", "either"], default="either")
    parser.add_argument("--python", action="append", help="instead of XMEM_PHANTOM_PYTHONS")
    asked = parser.parse_args()
    expandable = {"yes": True, "no": False, "either": None}[asked.expandable]
    pythons = asked.python or [p for p in os.environ.get("XMEM_PHANTOM_PYTHONS", "").split(":") if p]
    wrong = 0
    for python in pythons:
        started = time.monotonic()
        seeds = range(asked.first_seed, asked.first_seed + asked.settings)
        with ThreadPoolExecutor(asked.jobs) as pool:
            outcomes = list(pool.map(lambda seed: compare(python, seed, asked.requests, expandable), seeds))
        version, bad = version_of(python), [text for text, _ in outcomes if text]
        wrong += len(bad)
        print(
            f"torch {version}: {len(outcomes) - len(bad)} of {len(outcomes)} settings equal after every request, "
            f"{sum(n for _, n in outcomes):,} requests, {time.monotonic() - started:.0f} s",
            flush=True,
        )
    return 1 if wrong or not pythons else 0


def compare(python: str, seed: int, count: int, expandable: bool | None) -> tuple[str, int]:
    """What differed (nothing: an empty text), and how many requests were made."""
    setting = random_setting(seed, release_of(version_of(python)), expandable=expandable)
    requests = random_requests(seed, count, setting)
    looks = [*range(count // 10, count, count // 10), len(requests) - 1]
    text = ""
    with tempfile.TemporaryDirectory() as folder:
        try:
            difference = first_difference(requests, setting, run_torch(python, Path(folder), setting, requests, looks))
            text = difference.text if difference else ""
        except TorchFailed as failed:
            text = str(failed)
    if text:
        print(f"seed {seed}, {python}, {setting}\n{text}", flush=True)
    return text, len(requests)


def version_of(python: str) -> str:
    code = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
