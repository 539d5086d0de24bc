"""What a capture costs: the same training iterations bare on the CPU and under capture, as ratios.

Two workloads: a transformer, where kernels dominate, and a chain of tiny layers, where every call into torch
shows. Bare and captured runs alternate, so that a machine that slows down slows both; the medians are
compared. ``whole run`` is all else too: start-up, the profiler, writing the trace.

    python bench/bench_capture_overhead.py [--rounds 3] [--iterations 6]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from xmem.capture import capture

TRAINING = """
import sys, time, torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
if sys.argv[1] == "transformer":
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 4), torch.randn(4, 128, 256)
else:
    model = nn.Sequential(*(module for _ in range(100) for module in (nn.Linear(8, 8), nn.ReLU())))
    x = torch.randn(4, 8)
model, x = model.to(device), x.to(device)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
began = 0.0
with open(sys.argv[3], "w") as times:
    for _ in range(int(sys.argv[2])):
        # From the end of a step to the end of the next: the last step of a captured run does not return.
        if began:
            print(time.perf_counter() - began, file=times, flush=True)
        began = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


def run_bare(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


def run_captured(command: list[str], folder: Path, iterations: int) -> float:
    with contextlib.redirect_stderr(io.StringIO()):
        return capture(command, folder / "trace.json", iterations=iterations).wall_s


def iteration_seconds(times: Path) -> list[float]:
    """All but the first, which pays for what is done once."""
    return [float(line) for line in times.read_text().splitlines()][1:]


def compare(workload: str, rounds: int, iterations: int) -> None:
    walls: dict[str, list[float]] = {"bare": [], "captured": []}
    seconds: dict[str, list[float]] = {"bare": [], "captured": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, times = folder / "train.py", folder / "times"
        script.write_text(TRAINING)
        command = [sys.executable, str(script), workload, str(iterations), str(times)]
        for _ in range(rounds):
            walls["bare"].append(run_bare(command))
            seconds["bare"] += iteration_seconds(times)
            walls["captured"].append(run_captured(command, folder, iterations))
            seconds["captured"] += iteration_seconds(times)
    bare, captured = (statistics.median(seconds[key]) for key in ("bare", "captured"))
    whole = statistics.median(walls["captured"]) / statistics.median(walls["bare"])
    print(
        f"{workload:12} iteration {1000 * bare:7.1f} ms bare {1000 * captured:7.1f} ms captured: "
        f"ratio {captured / bare:.2f};  whole run: ratio {whole:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=6)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    for workload in ("transformer", "tiny layers"):
        compare(workload, options.rounds, options.iterations)


if __name__ == "__main__":
    main()
