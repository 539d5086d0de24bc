"""Kernels measured with Nsight Compute on an A100: theoretical and achieved occupancy by the hardware's
counters.

Three things are judged: the calculator beyond 48 KiB of shared memory, where PyTorch's profiler has no
figure; how far the achieved occupancy is below what whole waves of equal blocks would give; and a
constant that corrects it.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xmem.occupancy.calculator import Filling, Residency, filling, residency
from xmem.occupancy.limits import limits_of

A100 = (8, 0)
MULTIPROCESSORS = 108
NEEDED = {"Achieved Occupancy", "Theoretical Occupancy", "Block Size", "Grid Size"}
EDGES = (1.0, 4.0, 20.0)


@dataclass(frozen=True)
class Kernels:
    """A row per measured kernel; occupancies from 0 to 1, ``nan`` where the table has none."""

    file: list[str]
    name: list[str]
    threads: np.ndarray
    registers: np.ndarray
    shared: np.ndarray
    blocks: np.ndarray
    block_limits: np.ndarray
    theoretical: np.ndarray
    achieved: np.ndarray
    duration_us: np.ndarray

    def held(self) -> Residency:
        return residency(limits_of(A100), self.threads, self.registers, self.shared)

    def filled(self) -> Filling:
        return filling(limits_of(A100), MULTIPROCESSORS, self.held(), self.blocks)


def read(folder: Path) -> Kernels:
    """Read every ``ncu --csv`` table of a folder whose kernels have their launch and their occupancy."""
    rows = []
    for path in sorted(folder.glob("*.csv")):
        text = [line for line in path.read_text(errors="replace").splitlines() if not line.startswith("==")]
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for row in csv.DictReader(text):
            if row.get("Metric Name"):
                found[row["ID"]][row["Metric Name"]] = row["Metric Value"]
                found[row["ID"]]["name"] = row["Kernel Name"]
                if row["Metric Name"].endswith("Shared Memory Per Block"):
                    found[row["ID"]][row["Metric Name"] + " unit"] = row["Metric Unit"]
        rows += [(path.name, kernel) for kernel in found.values() if set(kernel) >= NEEDED]
    number = [
        {key: _number(value) for key, value in kernel.items() if key != "name" and not key.endswith(" unit")}
        for _, kernel in rows
    ]

    def column(name: str) -> np.ndarray:
        return np.array([kernel.get(name, np.nan) for kernel in number])

    shared = sum(
        np.array([_bytes(kernel, f"{kind} Shared Memory Per Block") for _, kernel in rows])
        for kind in ("Dynamic", "Static")
    )
    return Kernels(
        [path for path, _ in rows],
        [kernel["name"] for _, kernel in rows],
        column("Block Size"),
        column("Registers Per Thread"),
        np.asarray(shared),
        column("Grid Size"),
        np.stack([column("Block Limit Registers"), column("Block Limit Shared Mem")], axis=1),
        column("Theoretical Occupancy") / 100,
        column("Achieved Occupancy") / 100,
        column("Duration"),
    )


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


def _bytes(kernel: dict[str, str], name: str) -> float:
    unit = kernel.get(f"{name} unit", "").lower()
    scale = 1000 if unit.startswith("kb") else 1
    return _number(kernel.get(name, "0")) * scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="tables that ncu --csv wrote on an A100")
    kernels = read(parser.parse_args().folder)
    held, filled = kernels.held(), kernels.filled()
    off = np.abs(held.theoretical - kernels.theoretical)
    big = kernels.shared > 48 * 1024
    print(f"{len(off)} kernels, {big.sum()} of them above 48 KiB of shared memory")
    equal = off < 1e-4
    print(f"theoretical occupancy equal (0.01 points): {equal.sum()}; above 48 KiB {equal[big].sum()}")
    for row in np.nonzero(~equal)[0][:10]:
        print(
            f"  {kernels.theoretical[row]:.4f} measured, {held.theoretical[row]:.4f} ours: "
            f"{kernels.threads[row]:.0f} threads, {kernels.registers[row]:.0f} registers, "
            f"{kernels.shared[row]:.0f} B, {kernels.name[row][:60]}"
        )
    for name in ("steady", "elapsed", "active"):
        ours = getattr(filled, name)
        apart = ours / kernels.achieved - 1
        print(
            f"{name:8}: mean relative error {np.abs(apart).mean():.1%}, "
            f"median {np.median(np.abs(apart)):.1%}, "
            f"bias {apart.mean():+.1%}, rms {np.sqrt(((ours - kernels.achieved) ** 2).mean()):.3f}"
        )
    print_bands(kernels, filled)


def print_bands(kernels: Kernels, filled: Filling) -> None:
    """Print the corrections as ``data/achieved_occupancy.toml`` has them, and their error on other files."""
    ratio = kernels.achieved / filled.active
    for low, high in zip((0.0, *EDGES), (*EDGES, np.inf), strict=True):
        band = ratio[(filled.waves >= low) & (filled.waves < high)]
        print("\n[[band]]")
        print(f"waves_below = {'inf' if np.isinf(high) else high}\nkernels = {len(band)}")
        for name, share in (("median", 0.5), ("low", 0.05), ("high", 0.95)):
            print(f"{name} = {np.quantile(band, share):.3f}")
    files = np.array(kernels.file)
    band_of = np.searchsorted(EDGES, filled.waves, side="right")
    apart = []
    for file in sorted(set(files)):
        for number in range(len(EDGES) + 1):
            here, there = (band_of == number) & (files == file), (band_of == number) & (files != file)
            if here.any() and there.any():
                ours = np.median(ratio[there]) * filled.active[here]
                apart += list(np.abs(ours / kernels.achieved[here] - 1))
    print("\n# corrected, one file left out:")
    print(f"# mean relative error {np.mean(apart):.1%}, median {np.median(apart):.1%}")


if __name__ == "__main__":
    main()
