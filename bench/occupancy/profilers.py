"""The calculator against PyTorch's profiler: its own figure for every kernel of folders of traces."""

from __future__ import annotations

import argparse
from pathlib import Path

import kineto
import numpy as np

from xmem.occupancy.calculator import filling, kineto_percent, residency
from xmem.occupancy.limits import limits_of

FIGURE = "est. achieved occupancy %"


def compare(path: Path) -> tuple[int, int, int] | None:
    """Return kernels, those whose figure differs, those above 48 KiB; None for a trace without figures."""
    trace = kineto.read_document(path)
    if trace is None:
        return None
    kernels = [
        event["args"]
        for event in trace.get("traceEvents", [])
        if isinstance(event, dict)
        and str(event.get("cat", "")).lower() == "kernel"
        and FIGURE in event.get("args", {})
    ]
    if not kernels:
        return None
    gpu = trace["deviceProperties"][0]
    limits = limits_of((gpu["computeMajor"], gpu["computeMinor"]))
    threads, blocks = (
        np.prod(np.maximum([kernel[key] for kernel in kernels], 1), axis=1) for key in ("block", "grid")
    )
    registers, shared, theirs = (
        np.array([kernel[key] for kernel in kernels])
        for key in ("registers per thread", "shared memory", FIGURE)
    )
    like_theirs = residency(limits, threads, registers, shared, like_kineto=True)
    ours = kineto_percent(limits, gpu["numSms"], threads, like_theirs, blocks)
    real = filling(limits, gpu["numSms"], residency(limits, threads, registers, shared), blocks)
    print(
        f"{path.name[:48]:50}{gpu['name'][:24]:26}{len(kernels):7}{(ours != theirs).sum():6}"
        f"{(shared > 49152).sum():7}{theirs.mean() / 100:8.4f}{real.steady.mean():8.4f}"
    )
    return len(kernels), int((ours != theirs).sum()), int((shared > 49152).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    print(f"{'':50}{'':26}{'kernels':>7}{'differ':>6}{'>48KiB':>7}{'theirs':>8}{'ours':>8}")
    files = sorted({path for folder in parser.parse_args().folders for path in folder.glob("*.json*")})
    counts = [count for count in map(compare, files) if count]
    total = np.array(counts).reshape(-1, 3).sum(axis=0)
    print(f"{total[0]} kernels, {total[1]} differ, {total[2]} above 48 KiB")


if __name__ == "__main__":
    main()
