"""Rebuilds every figure of docs/occupancy.md: `python bench/occupancy/run.py FOLDER`.

The folder holds what the README beside this file lists: `traces`, `more_traces`, `products`, `counters`.
A part whose data is absent is left out, and said so.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

PARTS = (
    ("the calculator against profilers' figures", "profilers.py", ("traces", "more_traces")),
    ("tables of products", "products.py", ("products",)),
    ("hardware counters", "counters.py", ("counters",)),
    ("whole models left out", "leave_one_out.py", ("traces",)),
    ("packing", "packing.py", ("traces",)),
    ("the network and its baselines", "learned.py", ("traces", "more_traces")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for title, script, needs in PARTS:
        print(f"\n## {title}", flush=True)
        there = [folder / name for name in needs if (folder / name).is_dir()]
        if not there:
            print(f"left out: {folder} has no {' or '.join(needs)}")
            continue
        subprocess.run([sys.executable, str(HERE / script), *map(str, there)], check=True)


if __name__ == "__main__":
    main()
