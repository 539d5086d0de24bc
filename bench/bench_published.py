"""Phantom captures of published GPU runs against what NVML saw of them.

The rows are those of the xMem paper's public repository, as a CSV with the columns family, model,
optimizer, batch_size, gpu, gpu_total_bytes, zero_grad_mode, nvml_peak_bytes and real_oom. What NVML saw has
no context in it, but what kernels and libraries load on the way: 18 MiB on the RTX 3060 and 14 MiB on the
RTX 4060 for transformers, 26 and 24 MiB for CNNs. The runs used torch 2.6.0 and transformers 4.51.3; so
should the Python given here.

    python bench/bench_published.py --csv RUNS.csv --python ENV/bin/python [--family Transformer] [--limit 5]
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from xmem.capture import PhantomMachine, capture
from xmem.devices import find_device
from xmem.errors import CaptureError

SCRIPT = Path(__file__).parent / "published" / "train.py"
FAMILIES = ("CNN", "Transformer")
LOADED_MIB = {
    ("CNN", "3060"): 26,
    ("CNN", "4060"): 24,
    ("Transformer", "3060"): 18,
    ("Transformer", "4060"): 14,
}
ASSUMED_LOADED_MIB = 26
MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """A published run; sizes in bytes, peaks without the context."""

    family: str
    model: str
    optimizer: str
    batch: int
    gpu: str
    total_bytes: int
    zero_grad_mode: int
    peak_bytes: int
    out_of_memory: bool

    @property
    def loaded_bytes(self) -> int:
        return LOADED_MIB.get((self.family, self.gpu[-4:]), ASSUMED_LOADED_MIB) * MIB

    def __str__(self) -> str:
        model = self.model.rpartition("/")[2]
        job = f"{model:30s} {self.optimizer:9s} {self.batch:4d}"
        return f"{job} {self.gpu[-8:]:8s} zero_grad {self.zero_grad_mode}"


def read_runs(path: Path) -> Iterator[Run]:
    with path.open() as file:
        for row in csv.DictReader(file):
            mode = row["zero_grad_mode"]
            yield Run(
                family=row["family"],
                model=row["model"],
                optimizer=row["optimizer"],
                batch=int(row["batch_size"]),
                gpu=row["gpu"],
                total_bytes=int(row["gpu_total_bytes"]),
                zero_grad_mode=int(mode) if mode in ("0", "1", "2") else 0,
                peak_bytes=int(row["nvml_peak_bytes"]),
                out_of_memory=row["real_oom"] == "true",
            )


def phantom_peak(run: Run, python: str, cudnn: Path | None) -> int | None:
    """Peak of reserved bytes, None when the run is out of memory."""
    device = find_device(run.gpu)
    bare_context = device.context_bytes - device.loaded_kernels_bytes
    device = replace(
        device, total_memory_bytes=run.total_bytes, context_bytes=bare_context + run.loaded_bytes
    )
    command = [
        python,
        str(SCRIPT),
        run.family,
        run.model,
        run.optimizer,
        str(run.batch),
        str(run.zero_grad_mode),
    ]
    with tempfile.TemporaryDirectory() as folder:
        try:
            machine = PhantomMachine(device=device, strict_capacity=True, cudnn_library=cudnn)
            done = capture(
                command, Path(folder) / "trace.json", iterations=4, mode="phantom", machine=machine
            )
        except CaptureError as error:
            if "OutOfMemoryError" in str(error):
                return None
            raise
    return int(done.metadata["phantom"]["ranks"][0]["devices"][0]["peak_reserved_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--gpu", default="", help="only rows whose GPU's name holds this")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--cudnn", type=Path, help="libcudnn.so.9 of 9.8 or newer, to plan for cuDNN 9.1")
    options = parser.parse_args()
    errors, wrong, seconds = [], 0, []
    runs = read_runs(options.csv)
    chosen = [run for run in runs if options.family in (None, run.family) and options.gpu in run.gpu]
    for run in chosen[: options.limit]:
        began = time.monotonic()
        peak = phantom_peak(run, options.python, options.cudnn)
        seconds.append(time.monotonic() - began)
        if (peak is None) != run.out_of_memory:
            wrong += 1
        if peak is None or run.out_of_memory:
            said = "out of memory" if peak is None else f"{peak / MIB:.0f} MiB"
            truth = "out of memory" if run.out_of_memory else f"{run.peak_bytes / MIB:.0f} MiB"
            print(f"{run}  truth {truth}, phantom {said}", flush=True)
            continue
        error = (peak + run.loaded_bytes) / run.peak_bytes - 1
        errors.append(abs(error))
        print(
            f"{run}  truth {run.peak_bytes / MIB:8.0f} MiB, "
            f"phantom {(peak + run.loaded_bytes) / MIB:8.0f} MiB, {error:+.2%}  ({seconds[-1]:.1f} s)",
            flush=True,
        )
    if errors:
        print(
            f"{len(errors)} runs: median error {statistics.median(errors):.2%}, largest {max(errors):.2%}; "
            f"{wrong} wrong about running out of memory; median {statistics.median(seconds):.1f} s a run"
        )
    sys.exit(0)


if __name__ == "__main__":
    main()
