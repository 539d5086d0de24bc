"""Mode fake against the phantom GPU, request by request: the accuracy bench's jobs, and the capture targets.

Reads what ``captures.py`` has captured both ways, and captures the scripts of ``--targets`` both ways itself.
Prints a table of Markdown with a row for each job: its allocations, how many of them differ, and both peaks;
then what differs, by operator.

    XMEM_CUDNN=LIBCUDNN python bench/accuracy/compare_all.py --python ENV/bin/python --targets FOLDER

Convolutions of mode fake are planned by the library that ``XMEM_CUDNN`` names: name the environment's own.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compare_blocks import Differences, Side

from xmem.capture import capture
from xmem.errors import XmemError
from xmem.trace.attribution import Phase

_FAKE = re.compile(r"fake-(?P<job>.+)-torch(?P<torch>.+)\.[0-9a-f]{8}\.trace\.json\.gz")
_TARGETS_GPU = "rtx-3060"


@dataclass(frozen=True)
class Pair:
    """One job, captured both ways.

    Attributes:
        name: Of the job, and of the GPU where it is not that of the targets.
        fake: Trace of mode fake.
        phantom: Trace of the phantom GPU.
        gpu: The GPU that the phantom stood for.
    """

    name: str
    fake: Path
    phantom: Path
    gpu: str


def pairs_of(cache: Path) -> Iterator[Pair]:
    """Yield the jobs that the accuracy bench has captured both ways, each with its newest captures."""
    newest: dict[tuple[str, str], Path] = {}
    for path in sorted(cache.glob("fake-*.trace.json.gz"), key=lambda path: path.stat().st_mtime):
        if match := _FAKE.fullmatch(path.name):
            newest[match["job"], match["torch"]] = path
    for (job, torch), fake in sorted(newest.items()):
        name = re.compile(
            rf"phantom-{re.escape(job)}-(?P<gpu>[a-z0-9-]+)-\d+-torch{re.escape(torch)}\.[0-9a-f]{{8}}\..+"
        )
        found: dict[str, Path] = {}
        for path in sorted(cache.glob("phantom-*.trace.json.gz"), key=lambda path: path.stat().st_mtime):
            if match := name.fullmatch(path.name):
                found[match["gpu"]] = path
        for gpu, phantom in found.items():
            yield Pair(job if gpu == _TARGETS_GPU else f"{job} on {gpu}", fake, phantom, gpu)


def captured(scripts: list[Path], python: str, folder: Path) -> Iterator[Pair]:
    """Capture scripts both ways; print why where that fails."""
    for script in scripts:
        files = {mode: folder / f"{script.stem}.{mode}.json" for mode in ("fake", "phantom")}
        try:
            for mode, path in files.items():
                capture([python, str(script)], path, mode=mode, timeout_s=300, stdout=subprocess.DEVNULL)
        except XmemError as error:
            print(f"| {script.stem} | {str(error).splitlines()[0]} | | | | |")
            continue
        yield Pair(script.stem, files["fake"], files["phantom"], _TARGETS_GPU)


def compare(pair: Pair, causes: Counter[tuple[str, str, str]]) -> None:
    """Print the row of a job, and count what differs."""
    fake, gpu = Side.of(pair.fake, pair.gpu), Side.of(pair.phantom, pair.gpu)
    found = Differences.between(fake, gpu)
    sides = (
        ("extra", fake, found.extra),
        ("missing", gpu, found.missing),
        ("freed elsewhere", fake, found.moved),
    )
    for what, side, rows in sides:
        causes.update({(what, Phase(side.phase[row]).label, side.origin(row)) for row in rows})
    allocated, reserved = (
        [getattr(side.stages.unlimited, name).bytes for side in (fake, gpu)]
        for name in ("peak_allocated", "peak_reserved")
    )
    differ = ", ".join(f"{len(rows)} {what}" for what, _, rows in sides if len(rows)) or "none"
    print(
        f"| {pair.name} | {len(gpu)} | {differ} | {allocated[0] - allocated[1]:+d} | {reserved[1]} "
        f"| {reserved[0] / reserved[1] - 1:+.2%} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=Path(".accuracy"), help="what captures.py has captured")
    parser.add_argument("--targets", type=Path, help="folder of scripts to capture both ways")
    parser.add_argument("--python", help="of the environment that runs them")
    options = parser.parse_args()
    print("| job | allocations on the GPU | of them differ | allocated peak, bytes | reserved peak | |")
    print("|---|---|---|---|---|---|")
    causes: Counter[tuple[str, str, str]] = Counter()
    for pair in pairs_of(options.cache):
        compare(pair, causes)
    if options.targets is not None:
        if options.python is None:
            parser.error("--targets needs --python")
        with tempfile.TemporaryDirectory() as folder:
            for pair in captured(sorted(options.targets.glob("*.py")), options.python, Path(folder)):
                compare(pair, causes)
    print("\n| what differs | phase | operator | jobs |\n|---|---|---|---|")
    for (what, phase, origin), jobs in causes.most_common():
        print(f"| {what} | {phase} | {origin} | {jobs} |")


if __name__ == "__main__":
    main()
