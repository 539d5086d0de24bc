"""Make the captures that estimates of measured runs need; what is there stays, so it may be cut short.

    python bench/accuracy/captures.py --csv RUNS.csv --python ENV/bin/python [--cudnn libcudnn.so.9]

The published runs used torch 2.6.0 and transformers 4.51.3; so should the Python given here. In this order:
every run on a phantom GPU, every job on the CPU with nothing computed, every job at two small batches on the
CPU, and some jobs whole on the CPU, those of each model that cost least first. Models take turns.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.cache import Cache, Key, Record
from accuracy.runs import Job, Run, read_runs
from accuracy.ways import SMALL_BATCHES, Laboratory, NotCapturedError
from xmem.errors import XmemError
from xmem.estimation.need import memory_needed
from xmem.text.units import format_bytes, parse_bytes

STEPS = ("phantom", "fake", "small", "full")
ITERATIONS = 4
# The host holds the model twice and oneDNN's scratch beside what the GPU would.
_HOST_FACTOR = 1.3


def add_laboratory_arguments(parser: argparse.ArgumentParser) -> None:
    """What both commands of this folder take."""
    parser.add_argument("--csv", type=Path, required=True, help="the runs; columns as in runs.py")
    parser.add_argument("--python", required=True, help="of the environment that runs the jobs")
    parser.add_argument("--cache", type=Path, default=Path(".accuracy"), help="folder of the captures")
    parser.add_argument(
        "--cudnn", type=Path, help="libcudnn.so.9 that plans convolutions, in place of the environment's"
    )
    parser.add_argument("--stale", action="store_true", help="take captures of other sources where need be")
    parser.add_argument(
        "--only", default="", help="only runs whose family, model, optimizer, batch and GPU hold this"
    )
    parser.add_argument(
        "--adafactor",
        choices=("Adafactor", "transformers.Adafactor"),
        default="transformers.Adafactor",
        help="what the file's Adafactor is",
    )


def laboratory_of(options: argparse.Namespace) -> tuple[Laboratory, list[Run]]:
    """What the arguments of ``add_laboratory_arguments`` name."""
    runs = read_runs(options.csv, options.adafactor)
    chosen = [run for run in runs if options.only in f"{run.job.family} {run.job} {run.measured.gpu}"]
    cache = Cache(options.cache, options.stale)
    library = options.cudnn or _own_cudnn(options.python)
    if library is not None:
        os.environ["XMEM_CUDNN"] = str(library)  # asked for the workspaces of CPU runs too
    return Laboratory(options.python, cache, dict(os.environ), options.cudnn), chosen


def _own_cudnn(python: str) -> Path | None:
    """The cuDNN that the environment's torch brings."""
    packages = Path(python).parent.parent.glob("lib/python3*/site-packages/nvidia/cudnn/lib/libcudnn.so.9")
    return next(packages, None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_laboratory_arguments(parser)
    parser.add_argument("--steps", default=",".join(STEPS), help="some of phantom,fake,small,full")
    parser.add_argument("--full-rows", type=int, default=12, help="how many jobs run whole on the CPU")
    parser.add_argument("--budget-seconds", type=float, default=600, help="a capture on the CPU may take")
    parser.add_argument("--memory", help="a capture on the CPU may take; by default 3/4 of what is free")
    parser.add_argument("--retry", action="store_true", help="try again what failed or was skipped")
    options = parser.parse_args()
    if unknown := set(options.steps.split(",")) - set(STEPS):
        parser.error(f"--steps: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    try:
        laboratory, runs = laboratory_of(options)
        memory_bytes = parse_bytes(options.memory) if options.memory else _free_bytes() * 3 // 4
        bench = _Bench(laboratory, options.budget_seconds, memory_bytes, options.retry)
        for step in options.steps.split(","):
            if step == "phantom":
                bench.phantom(runs)
            elif step == "fake":
                bench.fake(runs)
            elif step == "small":
                bench.small(runs)
            else:
                bench.full(runs, options.full_rows)
    except (XmemError, OSError) as error:
        sys.exit(f"{error}")


class _Bench:
    """Runs captures one at a time, and says how each went."""

    def __init__(self, laboratory: Laboratory, budget_s: float, memory_bytes: int, retry: bool) -> None:
        self._laboratory = laboratory
        self._budget_s = budget_s
        self._memory_bytes = memory_bytes
        self._retry = retry

    def phantom(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._unless_there(
                self._laboratory.phantom_key(run),
                lambda run=run: self._laboratory.capture_on_phantom(run, ITERATIONS),
            )

    def fake(self, runs: Iterable[Run]) -> None:
        for job in in_turns(run.job for run in runs):
            self._unless_there(
                self._laboratory.cpu_key(job, "fake"),
                lambda job=job: self._laboratory.capture_on_cpu(job, ITERATIONS, self._budget_s, "fake"),
            )

    def small(self, runs: Iterable[Run]) -> None:
        for job in in_turns(run.job.at(SMALL_BATCHES[0]) for run in runs):
            for batch in SMALL_BATCHES:
                self._on_cpu(job.at(batch))

    def full(self, runs: Iterable[Run], count: int) -> None:
        costs = {run.job: self._cost_s(run.job) for run in runs}
        possible = sorted((job for job in costs if costs[job] < float("inf")), key=costs.__getitem__)
        for job in in_turns(possible)[:count]:
            self._on_cpu(job, self._host_bytes(job))

    def _on_cpu(self, job: Job, host_bytes: int | None = None) -> None:
        def make() -> Record:
            if host_bytes is not None and host_bytes > self._memory_bytes:
                record = Record("skipped", 0.0, note=f"takes {format_bytes(host_bytes)} of the host's memory")
                self._laboratory.cache.put(self._laboratory.cpu_key(job), record)
                return record
            with _limited_memory(self._memory_bytes):
                return self._laboratory.capture_on_cpu(job, ITERATIONS, self._budget_s)

        self._unless_there(self._laboratory.cpu_key(job), make)

    def _unless_there(self, key: Key, make: Callable[[], Record]) -> None:
        found = self._laboratory.cache.find(key)
        if found is not None and not (self._retry and found[1].outcome in ("failed", "skipped")):
            return
        record = make()
        note = f": {record.note}" if record.note else ""
        print(
            f"{time.strftime('%H:%M:%S')} {key} {record.outcome} in {record.seconds:.0f} s{note}", flush=True
        )

    def _cost_s(self, job: Job) -> float:
        """About what the job takes on the CPU whole: by its batch over a small one, start aside."""
        small = job.at(SMALL_BATCHES[-1])
        try:
            times = self._laboratory.observe(small).workload.alloc_ns
        except NotCapturedError:
            return float("inf")
        return float(times.max() - times.min()) / 1e9 * job.batch / small.batch

    def _host_bytes(self, job: Job) -> int | None:
        try:
            observed = self._laboratory.model(job).at(batch=job.batch)
        except NotCapturedError:
            return None
        return int(memory_needed(observed).peak_allocated_bytes * _HOST_FACTOR)


def in_turns(jobs: Iterable[Job]) -> list[Job]:
    """The first job of each model, then the second of each, so that an early end has seen all models.

    Repetitions are left out; within a turn, models come in the order of their first jobs.
    """
    by_model: dict[str, list[Job]] = {}
    for job in dict.fromkeys(jobs):
        by_model.setdefault(job.model, []).append(job)
    turns = zip_longest(*by_model.values())
    return [job for turn in turns for job in turn if job is not None]


def _free_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not say how much is free; pass --memory")


@contextmanager
def _limited_memory(size_bytes: int) -> Iterator[None]:
    """What is started meanwhile fails to allocate beyond this, where the machine would be brought down."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


if __name__ == "__main__":
    main()
