"""Run rows, a line each: ``cd tests && python -m stacks [PATTERN] [--again]``."""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from stacks.rows import selected_rows
from stacks.runner import GIB, Result, run_row

ROOT = Path(__file__).parents[2]


def environments_folder() -> Path:
    """Where the virtual environments are: the Makefile's own, or ``XMEM_STACKS_ENVIRONMENTS``."""
    return Path(os.environ.get("XMEM_STACKS_ENVIRONMENTS") or ROOT / ".venv-stacks").absolute()


def results_folder() -> Path:
    """Results, logs and working folders of the rows."""
    return ROOT / ".stacks"


def in_words(result: Result) -> str:
    """One line."""
    line = f"{result.name:28} {result.wall_s:6.1f} s  host {result.host_peak_bytes / GIB:4.1f} GiB  "
    if not result.worked:
        return f"{line}NO ESTIMATE ({result.exit_status}): {result.reason[:300]}"
    agrees = {True: "agrees", False: "DISAGREES", None: "not measured"}[result.replay_agrees]
    measured = result.measured_reserved_bytes or 0
    return f"{line}needs {result.need_bytes / GIB:.3f} GiB, measured {measured / GIB:.3f}, replay {agrees}"


def main() -> None:
    """Run the rows that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--again", action="store_true", help="also rows whose result is not stale")
    parser.add_argument(
        "--environments", action="store_true", help="only name the environments that they need"
    )
    options = parser.parse_args()
    if options.environments:
        print(*dict.fromkeys(row.environment for row in selected_rows(options.pattern)))
        return
    for row in selected_rows(options.pattern):
        try:
            result = run_row(
                row, environments=environments_folder(), folder=results_folder(), again=options.again
            )
        except (FileNotFoundError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{row.name:28} NOT RUN: {error}", flush=True)
        else:
            print(in_words(result), flush=True)


if __name__ == "__main__":
    main()
