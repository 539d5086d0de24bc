"""Whether time and memory grow in a straight line, in each direction that a trace can grow in.

    python bench/bench_growth.py [--only NAME] [--repeats N] [--command "xmem-fast"]

Every dimension has three traces, of N, 2N and 4N. Each is estimated in a process of its own, to JSON and to
a page; the least CPU seconds and the largest resident set count. The step is what the second doubling added
over what the first one did: 2 is a straight line, 4 a square. Where a doubling adds too little to tell (under
0.05 s or 4 MiB), the step is not given.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from xmem.testing.trace_builder import TraceBuilder

_MOST_STEP = 2.8
_LEAST_S, _LEAST_BYTES = 0.05, 4 << 20
_BLOCK_BYTES = 4096
_ADDRESS = 1 << 32


def events(count: int) -> TraceBuilder:
    """Operators of one name in a row, each with a block that is freed."""
    built = TraceBuilder()
    for number in range(count):
        at = 4 * number
        built.operator("aten::mul", at, at + 3)
        built.alloc(_ADDRESS, _BLOCK_BYTES, at + 1).free(_ADDRESS, at + 2)
    return _ended(built, 4 * count)


def iterations(count: int) -> TraceBuilder:
    """Iterations, each with an optimizer's step."""
    built = TraceBuilder()
    for number in range(count):
        at = 100 * number
        built.iteration(number, at, at + 90)
        built.operator("aten::mul", at + 1, at + 10).alloc(_ADDRESS, _BLOCK_BYTES, at + 2)
        built.annotation("Optimizer.step#SGD.step", at + 50, at + 60).free(_ADDRESS, at + 80)
    return built


def depth(count: int) -> TraceBuilder:
    """Operators inside of each other, each with a block."""
    built = TraceBuilder()
    for number in range(count):
        built.operator("aten::mul", number, 4 * count - number)
        built.alloc(_ADDRESS + _BLOCK_BYTES * number, _BLOCK_BYTES, number)
    return _ended(built, 4 * count)


def modules(count: int) -> TraceBuilder:
    """Calls of modules inside of each other, each with a block."""
    built = TraceBuilder()
    for number in range(count):
        built.module(f"Net.{number}", number, 4 * count - number)
        built.alloc(_ADDRESS + _BLOCK_BYTES * number, _BLOCK_BYTES, number)
    return _ended(built, 4 * count)


def names(count: int) -> TraceBuilder:
    """Operators and modules, each with a name of its own and a block that stays."""
    built = TraceBuilder()
    for number in range(count):
        at = 4 * number
        built.module(f"Net.layer{number}", at, at + 3).operator(f"custom::operator{number}", at, at + 3)
        built.alloc(_ADDRESS + _BLOCK_BYTES * number, _BLOCK_BYTES, at + 1)
    return _ended(built, 4 * count)


def lines(count: int) -> TraceBuilder:
    """Source lines, each with a block that stays."""
    built = TraceBuilder()
    for number in range(count):
        at = 4 * number
        built.line(f"file{number % 100}.py", number + 1, at, at + 3).operator("aten::mul", at, at + 3)
        built.alloc(_ADDRESS + _BLOCK_BYTES * number, _BLOCK_BYTES, at + 1)
    return _ended(built, 4 * count)


def threads(count: int) -> TraceBuilder:
    """Threads, each with an operator and a block."""
    built = TraceBuilder()
    for number in range(count):
        at = 4 * number
        built.on(number + 1).operator("aten::mul", at, at + 3)
        built.alloc(_ADDRESS + _BLOCK_BYTES * number, _BLOCK_BYTES, at + 1)
    return _ended(built.on(1), 4 * count)


def addresses(count: int) -> TraceBuilder:
    """Blocks that live at once, freed in another order than they were made in."""
    built = TraceBuilder()
    for number in range(count):
        built.alloc(_ADDRESS + _BLOCK_BYTES * number, 512 * (1 + number * 7919 % 4093), number)
    for number in range(count):
        built.free(_ADDRESS + _BLOCK_BYTES * (number * 7919 % count), count + number)
    return _ended(built, 2 * count)


def devices(count: int) -> TraceBuilder:
    """Blocks on a GPU, of sizes that do not fit into each other's places."""
    built = TraceBuilder()
    for number in range(count):
        size = 512 * (1 + number * 7919 % 40_093)
        built.alloc(_ADDRESS + (number << 26), size, 2 * number, device_type=1, device_index=0)
        if number % 2:
            built.free(_ADDRESS + ((number - 1) << 26), 2 * number + 1, device_type=1, device_index=0)
    return _ended(built, 2 * count)


def tensors(count: int) -> TraceBuilder:
    """Parameters with names."""
    built = TraceBuilder()
    for number in range(count):
        address = _ADDRESS + _BLOCK_BYTES * number
        built.alloc(address, _BLOCK_BYTES, number)
        built.tensor("parameter", f"Net.{number}.weight", address, _BLOCK_BYTES, number)
    return _ended(built, count).with_metadata(
        mode="real", versions={"torch": "2.13.0"}, argv=["train.py"], iterations=2
    )


DIMENSIONS: dict[str, tuple[Callable[[int], TraceBuilder], int]] = {
    "events": (events, 40_000),
    "iterations": (iterations, 8_000),
    "depth": (depth, 2_400),
    "modules": (modules, 2_400),
    "names": (names, 25_000),
    "lines": (lines, 25_000),
    "threads": (threads, 25_000),
    "addresses": (addresses, 50_000),
    "blocks of a GPU": (devices, 30_000),
    "tensors": (tensors, 25_000),
}


def _ended(built: TraceBuilder, at: int) -> TraceBuilder:
    """The same with two iterations after it."""
    for number in range(2):
        begin = at + 100 * (number + 1)
        built.iteration(number, begin, begin + 90)
        built.annotation("Optimizer.step#SGD.step", begin + 50, begin + 60)
    return built


def write(make: Callable[[int], TraceBuilder], count: int, path: Path) -> None:
    """Write a trace of some length."""
    make(count).write(path, "compact")


def cost(command: list[str], repeats: int) -> tuple[float, int]:
    """CPU seconds and bytes of resident memory of a command.

    Raises:
        SystemExit: It has no answer.
    """
    seconds, memory = [], []
    for _ in range(repeats):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert child.stderr is not None
        said = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 1):
            sys.exit(
                f"{shlex.join(command)}: exit status {child.returncode}\n{said.decode(errors='replace')}"
            )
        seconds.append(usage.ru_utime + usage.ru_stime)
        memory.append(usage.ru_maxrss * 1024)
    return min(seconds), min(memory)


def step(costs: list[float], least: float) -> float | None:
    """What the second doubling added over what the first one did; None where that is too little to tell."""
    first, second = costs[1] - costs[0], costs[2] - costs[1]
    return second / first if first >= least and second >= least else None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=DIMENSIONS, action="append", help="may be repeated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--command", default="xmem-fast", help="how xmem-fast is called")
    options = parser.parse_args()
    straight = True
    print(
        f"{'dimension':16} {'N':>8} {'output':6}  seconds at N, 2N, 4N (step)        MiB at N, 2N, 4N (step)"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or DIMENSIONS:
            make, count = DIMENSIONS[name]
            traces = [Path(folder) / f"{factor}.json" for factor in (1, 2, 4)]
            for trace, factor in zip(traces, (1, 2, 4), strict=True):
                # In a process of its own: children begin with the peak memory of what starts them.
                writer = multiprocessing.Process(target=write, args=(make, count * factor, trace))
                writer.start()
                writer.join()
            for output in ("json", "page"):
                flags = ["--json"] if output == "json" else ["--html", str(Path(folder) / "page.html")]
                estimate = [*shlex.split(options.command), "estimate"]
                costs = [cost([*estimate, str(trace), *flags], options.repeats) for trace in traces]
                seconds, memory = [s for s, _ in costs], [float(m) for _, m in costs]
                steps = step(seconds, _LEAST_S), step(memory, _LEAST_BYTES)
                straight &= all(value is None or value <= _MOST_STEP for value in steps)
                shown = [f"({'-' if value is None else f'{value:.1f}'})" for value in steps]
                print(
                    f"{name:16} {count:8,} {output:6}  "
                    + " ".join(f"{value:7.2f}" for value in seconds)
                    + f" {shown[0]:>7}   "
                    + " ".join(f"{value / 2**20:7.0f}" for value in memory)
                    + f" {shown[1]:>7}",
                    flush=True,
                )
    print("each grows in a straight line" if straight else "NOT each grows in a straight line")
    return 0 if straight else 1


if __name__ == "__main__":
    sys.exit(main())
