"""Tables of single products of matrices on five GPUs (NeuSight): kernel, grid and block, without registers.

They hold how libraries choose: the constants of ``xmem.occupancy.library_choice`` and the weights of
``kernel_model`` are judged here, on other GPUs than those of the occupancy figures.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
from pathlib import Path

from xmem.occupancy.kernel_model import Kernel, KernelLaunch, KernelModel, Recorded
from xmem.occupancy.problems import Problem, Product, alignment_of

MULTIPROCESSORS = {
    "Tesla T4": (40, (7, 5)),
    "Tesla V100-PCIE-32GB": (80, (7, 0)),
    "NVIDIA A100-PCIE-40GB": (108, (8, 0)),
    "Tesla P100-PCIE-16GB": (56, (6, 0)),
    "Tesla P4": (20, (6, 1)),
}
OPERATORS = ("linear", "bmm")


def read(folder: Path, operator: str, gpu: str) -> list[Recorded]:
    """Read ``collect/OPERATOR/p2.1.0/GPU.csv``; rows that are not whole are left out."""
    multiprocessors, capability = MULTIPROCESSORS[gpu]
    found = []
    with (folder / operator / "p2.1.0" / f"{gpu}.csv").open(newline="") as text:
        for row in csv.DictReader(text):
            try:
                batch, rows, depth, columns = (int(float(row[key])) for key in ("B", "M", "N", "K"))
                blocks, threads = (
                    math.prod(int(float(row[f"{what} {axis}"])) for axis in "xyz")
                    for what in ("Grid", "Block")
                )
            except ValueError:
                continue
            if operator == "linear":
                product = Product(columns, rows * batch, depth, 1, "tn", alignment_of(columns, depth))
                shapes: tuple[tuple[int, ...], ...] = ((columns,), (rows * batch, depth), (depth, columns))
                name = "aten::addmm"
            else:
                product = Product(columns, rows, depth, batch, "nn", alignment_of(columns, depth))
                shapes, name = ((batch, rows, depth), (batch, depth, columns)), "aten::bmm"
            problem = Problem(name, shapes, ("float32",) * len(shapes), (), product)
            kernel = Kernel(row["Kernel Name"], threads, -1, -1)
            found.append(Recorded(problem, capability, multiprocessors, (KernelLaunch(kernel, blocks),)))
    return found


def check_table_figures(folder: Path) -> tuple[int, int]:
    """Return rows, and rows whose blocks and warps per multiprocessor are those of the grid and the block."""
    rows = equal = 0
    for path in sorted(folder.glob("*/p2.1.0/*.csv")):
        if path.stem not in MULTIPROCESSORS:
            continue
        multiprocessors = MULTIPROCESSORS[path.stem][0]
        with path.open(newline="") as text:
            for row in csv.DictReader(text):
                try:
                    blocks, threads = (
                        math.prod(int(float(row[f"{what} {axis}"])) for axis in "xyz")
                        for what in ("Grid", "Block")
                    )
                    per_sm = float(row["Blocks per SM"]), float(row["Warps per SM"])
                except ValueError:
                    continue
                ours = blocks / multiprocessors, blocks * -(-threads // 32) / multiprocessors
                rows += 1
                equal += all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(ours, per_sm, strict=True))
    return rows, equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="NeuSight's scripts/asplos/data/dataset/train/collect")
    parser.add_argument(
        "--recorded", type=int, default=40, help="products that the model may know, per table"
    )
    arguments = parser.parse_args()
    rows, equal = check_table_figures(arguments.folder)
    print(f"blocks and warps per multiprocessor: {equal} of {rows} rows equal")
    for operator in OPERATORS:
        for gpu, (multiprocessors, capability) in MULTIPROCESSORS.items():
            table = read(arguments.folder, operator, gpu)
            chance = random.Random(0)
            model = KernelModel(chance.sample(table, arguments.recorded))
            same, off = [], []
            for item in chance.sample(table, 300):
                predicted = model.predict(item.problem, capability, multiprocessors)
                assert predicted is not None
                ours, theirs = predicted.launches[0], item.launches[0]
                same.append(ours.kernel.name == theirs.kernel.name)
                there = theirs.blocks * theirs.kernel.threads
                off.append(abs(math.log(ours.blocks * ours.kernel.threads / there)))
            print(
                f"{operator:7} {gpu:22} the same kernel {statistics.mean(same):4.0%}, "
                f"threads of the grid off by {math.expm1(statistics.mean(off)):4.0%} on average, "
                f"{math.expm1(statistics.median(off)):4.0%} in the middle"
            )


if __name__ == "__main__":
    main()
