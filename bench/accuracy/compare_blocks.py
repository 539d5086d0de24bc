"""What a CPU capture, after all policies, still asks of the allocator otherwise than the GPU does.

Two captures of one job with the same torch, one on the CPU (``--mode real``) and one on the phantom GPU, are
reduced to their allocations in order, each the size that the caching allocator rounds it to. Allocations of
one size, phase and iteration that come in the same order stand for each other. What is left is told by
operator: extra on the CPU, missing there; of those that match, which are freed at another place, counted in
matched allocations. Peaks of both replays stand above.

    python bench/accuracy/compare_blocks.py CPU.json PHANTOM.json [--gpu rtx-3060] [--details ITERATION]
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.estimation.analysis import Stages
from xmem.estimation.pipeline import run_stages
from xmem.estimation.question import ask
from xmem.run.workload import Workload
from xmem.trace.attribution import Phase

MIB = 1 << 20
ROUNDING = 512  # kMinBlockSize of CUDACachingAllocator.cpp


@dataclass(frozen=True)
class Side:
    """The allocations of one run, in order.

    Attributes:
        stages: The run.
        size_bytes: int64, as the allocator rounds it.
        phase: uint8, a ``Phase``.
    """

    stages: Stages
    size_bytes: NDArray[np.int64]
    phase: NDArray[np.uint8]

    @classmethod
    def of(cls, path: Path, gpu: str) -> Side:
        """Read a capture and move it to a GPU."""
        stages = run_stages(path, ask(gpu=gpu))
        workload = stages.workload.select(stages.workload.size_bytes > 0)
        rounded = (workload.size_bytes + ROUNDING - 1) // ROUNDING * ROUNDING
        return cls(replace(stages, workload=workload), rounded, _phases(workload))

    def __len__(self) -> int:
        return len(self.size_bytes)

    @property
    def iteration(self) -> NDArray[np.int32]:
        """Of each allocation, -1 = before the first."""
        return self.stages.workload.iteration

    def origin(self, row: int) -> str:
        """Outermost and innermost operator of an allocation."""
        workload, trace = self.stages.workload, self.stages.trace
        names = [
            trace.names[trace.events.name[operator]] if operator >= 0 else "-"
            for operator in (workload.root_operator[row], workload.operator[row])
        ]
        names = [name.removeprefix("autograd::engine::evaluate_function: ") for name in names]
        return names[0] if names[0] == names[1] else " > ".join(names)

    def module(self, row: int) -> str:
        """Path of the module that an allocation was made in."""
        module = self.stages.workload.module[row]
        return self.stages.attribution.modules[module] if module >= 0 else ""

    def keys(self, numbers: dict[str, int]) -> NDArray[np.int64]:
        """What has to be equal of allocations that stand for each other: size, and the module if it is
        called.
        """
        paths = [numbers.setdefault(path, len(numbers)) for path in self.stages.attribution.modules]
        modules = np.append(np.array(paths, np.int64), -1)[self.stages.workload.module]
        return np.where(self.phase == Phase.FORWARD, modules + 1, 0) + (self.size_bytes << 16)


def _phases(workload: Workload) -> NDArray[np.uint8]:
    """Phases, with loading and what comes between phases taken as forward: their borders are the script's."""
    phase = workload.phase.copy()
    phase[np.isin(phase, (Phase.OTHER, Phase.LOAD, Phase.ZERO_GRAD))] = Phase.FORWARD
    return phase


def pair(cpu: Side, gpu: Side) -> NDArray[np.int32]:
    """The GPU's allocation for each of the CPU's, -1 = none."""
    groups = [side.iteration * 8 + side.phase for side in (cpu, gpu)]
    numbers: dict[str, int] = {}
    keys = [side.keys(numbers) for side in (cpu, gpu)]
    counterpart = np.full(len(cpu), -1, np.int32)
    for group in np.intersect1d(*groups):
        left, right = (np.flatnonzero(side == group) for side in groups)
        found = _core.align(keys[0][left], keys[1][right], len(left) + len(right))
        counterpart[left[found >= 0]] = right[found[found >= 0]]
    return counterpart


def places_of_frees(side: Side, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Of each of these allocations, how many of them were made before it was freed."""
    workload = side.stages.workload
    return np.searchsorted(workload.alloc_ns[rows], workload.free_ns[rows])


@dataclass(frozen=True)
class Differences:
    """How the allocations of two runs stand for each other.

    Attributes:
        counterpart: int32, of each of the CPU's allocations the GPU's; -1 = none.
        extra: Rows of the CPU's that the GPU does not make.
        missing: Rows of the GPU's that the CPU does not make.
        moved: Rows of the CPU's that are freed at another place, counted in allocations that both make.
    """

    counterpart: NDArray[np.int32]
    extra: NDArray[np.intp]
    missing: NDArray[np.intp]
    moved: NDArray[np.intp]

    @classmethod
    def between(cls, cpu: Side, gpu: Side) -> Differences:
        """Pair the allocations of two runs."""
        counterpart = pair(cpu, gpu)
        matched = np.flatnonzero(counterpart >= 0)
        others = counterpart[matched]
        moved = matched[places_of_frees(cpu, matched) != places_of_frees(gpu, others)]
        return cls(
            counterpart, np.flatnonzero(counterpart < 0), np.setdiff1d(np.arange(len(gpu)), others), moved
        )


def report(cpu: Side, gpu: Side, details: int | None) -> None:
    """Print peaks, counts by iteration, and what differs by operator."""
    found = Differences.between(cpu, gpu)
    extra, missing, moved = found.extra, found.missing, found.moved

    for what, stages in (("CPU after policies", cpu.stages), ("phantom", gpu.stages)):
        peak = stages.unlimited
        print(
            f"{what:20s} {len(stages.workload):6d} allocations, peak allocated "
            f"{peak.peak_allocated.bytes / MIB:9.2f} MiB, reserved {peak.peak_reserved.bytes / MIB:9.2f} MiB"
        )
    error = cpu.stages.unlimited.peak_reserved.bytes / gpu.stages.unlimited.peak_reserved.bytes - 1
    print(f"{'':20s} reserved {error:+.2%}")
    for iteration in sorted({*cpu.iteration.tolist(), *gpu.iteration.tolist()}):
        counts = [
            int((cpu.iteration[extra] == iteration).sum()),
            int((gpu.iteration[missing] == iteration).sum()),
            int((cpu.iteration[moved] == iteration).sum()),
        ]
        print(
            f"iteration {iteration:2d}: {counts[0]} extra, {counts[1]} missing, {counts[2]} freed elsewhere"
        )

    def listed(what: str, side: Side, rows: NDArray[np.intp]) -> None:
        groups: Counter[tuple[str, str]] = Counter()
        bytes_: Counter[tuple[str, str]] = Counter()
        for row in rows:
            key = (Phase(side.phase[row]).label, side.origin(row))
            groups[key] += 1
            bytes_[key] += int(side.size_bytes[row])
        for (phase, origin), count in sorted(groups.items(), key=lambda item: -bytes_[item[0]]):
            size = bytes_[(phase, origin)] / MIB
            print(f"{what:8s} {count:5d} x {size / count:10.3f} MiB  {phase:14s} {origin}")

    listed("extra", cpu, extra)
    listed("missing", gpu, missing)
    listed("moved", cpu, moved)
    if details is not None:
        _print_details(cpu, gpu, found.counterpart, details)


def _print_details(cpu: Side, gpu: Side, counterpart: NDArray[np.int32], iteration: int) -> None:
    """Both sequences side by side, where they differ."""
    matched = np.flatnonzero(counterpart >= 0)
    others = counterpart[matched]
    cpu_place = np.full(len(cpu), -1)
    cpu_place[matched] = places_of_frees(cpu, matched)
    gpu_place = np.full(len(gpu), -1)
    gpu_place[others] = places_of_frees(gpu, others)
    last = -1
    position = 0

    def line(sign: str, side: Side, row: int, note: str = "") -> None:
        print(
            f"{sign} {position:6d} {side.size_bytes[row]:12d} {Phase(side.phase[row]).label[:8]:8s} "
            f"{side.origin(row)}  {side.module(row)} {note}"
        )

    for row in range(len(cpu)):
        if counterpart[row] < 0:
            if cpu.iteration[row] == iteration:
                line("+", cpu, row)
            continue
        for other in range(last + 1, int(counterpart[row])):
            if gpu.iteration[other] == iteration:
                line("-", gpu, other)
        last = int(counterpart[row])
        if cpu_place[row] != gpu_place[last] and cpu.iteration[row] == iteration:
            line("~", cpu, row, f"freed after {cpu_place[row]}, on the GPU after {gpu_place[last]}")
        position += 1
    for other in range(last + 1, len(gpu)):
        if gpu.iteration[other] == iteration:
            line("-", gpu, other)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cpu", type=Path)
    parser.add_argument("phantom", type=Path)
    parser.add_argument("--gpu", default="rtx-3060")
    parser.add_argument("--details", type=int, metavar="ITERATION", help="list each difference of one")
    options = parser.parse_args()
    report(Side.of(options.cpu, options.gpu), Side.of(options.phantom, options.gpu), options.details)


if __name__ == "__main__":
    main()
