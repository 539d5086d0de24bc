"""A visit to a GPU: as much of the plan as fits into the minutes given, every finished run kept."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xmem_measure import summary
from xmem_measure.describe import describe
from xmem_measure.nvml import DeviceMemory, HostMemory, Nvml, NvmlError
from xmem_measure.parts import least_memory, nsight
from xmem_measure.plan import PARTS, TOGETHER, Run, plan
from xmem_measure.processes import Child, Zygote, environment, finish_together
from xmem_measure.store import Store, folder_name

# Runs that prepare on the host while one has the device.
_AHEAD = 2
_SHORTEST_TIMEOUT_S = 60.0
_PATIENCE = 8
# How much a run that has just ended says about how long the next of its part takes.
_LEARNING = 0.3


# Of the records; SCHEMA.md says what each is.
SCHEMA = 1


class Stopped(BaseException):
    """Somebody wants the visit to end."""

    def __init__(self, signal_number: int) -> None:
        self.exit_status = 128 + signal_number
        super().__init__(signal_number)


class Visit:
    """Runs on one device until the time is over."""

    def __init__(self, zygote: Zygote, output: Path, deadline: float, *, dry_run: bool) -> None:
        """Find out which GPU this is, and what earlier visits have done."""
        self._zygote = zygote
        self._deadline = deadline
        self._dry_run = dry_run
        self._driver, self._nvml_total = "", 0
        self._memory: DeviceMemory | None = None
        device = Child(zygote, Run("device", {}), {}, part="probe").finish(deadline)
        if device["outcome"] != "done":
            raise RuntimeError(f"no GPU that PyTorch can use: {device['error']}")
        # Results of a described GPU must never pass for a measurement.
        gpu = f"phantom {device['gpu']}" if os.environ.get("XMEM_PHANTOM") else device["gpu"]
        self.environment = {
            "gpu": gpu,
            **{name: version for name, version in zygote.versions.items() if name != "python"},
        }
        self._total_bytes = device["total_memory_bytes"]
        self.store = Store(output / folder_name(gpu, zygote.versions["torch"]))
        self.records: list[dict[str, Any]] = []
        self._pace: dict[str, float] = dict.fromkeys(PARTS, 1.0)
        if not dry_run:
            try:
                nvml = Nvml(device["uuid"])
                self._memory, self._driver, self._nvml_total = nvml, nvml.driver_version(), nvml.total_bytes()
            except NvmlError as error:
                print(f"no NVML, so the device's memory in use is not sampled: {error}", file=sys.stderr)

    def remaining(self, runs: Sequence[Run]) -> list[Run]:
        """Those that no visit has finished and that can be done here."""
        return [
            run
            for run in runs
            if not self.store.is_finished(run.key(self.environment))
            and not any(name in self._zygote.missing for name in run.needs)
        ]

    def measure(self, runs: Sequence[Run]) -> None:
        """As many of these, in order, as the time allows; each is kept as soon as it is over."""
        left = deque(run for run in runs if run.part != "nsight" and run.part not in TOGETHER)
        shared = deque(run for run in runs if run.part in TOGETHER)
        counted = deque(run for run in runs if run.part == "nsight")
        ahead: deque[Child] = deque()
        while True:
            while len(ahead) < _AHEAD and (run := self._next_that_fits(left)):
                ahead.append(Child(self._zygote, run, self._first_config(run)))
            if not ahead:
                break
            child = ahead.popleft()
            later = len(left) + len(ahead) + len(shared) + len(counted)
            self._keep(child.run, self._measured(child), later)
        while together := self._next_that_share(shared):
            for run, result in zip(together, self._shared(together), strict=True):
                self._keep(run, result, len(shared) + len(counted))
        while run := self._next_that_fits(counted):
            self._keep(run, self._counted(run), len(counted))

    def _next_that_fits(self, left: deque[Run]) -> Run | None:
        """Take the first run that is expected to end in time."""
        rest = self._deadline - time.monotonic()
        for run in left:
            if run.seconds * self._pace[run.part] < rest:
                left.remove(run)
                return run
        return None

    def _next_that_share(self, left: deque[Run]) -> list[Run]:
        """Take the next runs of one part, as many as may have the device at once."""
        together: list[Run] = []
        while (not together or (left and left[0].part == together[0].part)) and (
            run := self._next_that_fits(left)
        ):
            together.append(run)
            if len(together) == TOGETHER[run.part]:
                break
        return together

    @staticmethod
    def _first_config(run: Run) -> dict[str, Any]:
        return {**run.config, "cap_bytes": None} if run.part == "least_memory" else dict(run.config)

    def _measured(self, child: Child) -> dict[str, Any]:
        began = time.monotonic()
        started = datetime.now(UTC).isoformat(timespec="seconds")
        memory = HostMemory(child.pid) if self._dry_run else self._memory
        result = child.finish(self._timeout(child.run), memory)
        if child.run.part == "least_memory" and result["outcome"] == "done":
            result = self._least(child.run, result)
        seconds = time.monotonic() - began
        self._learn(child.run, seconds)
        return {"started": started, "seconds": round(seconds, 3), **result}

    def _shared(self, runs: list[Run]) -> list[dict[str, Any]]:
        """Runs that have the device at once; the device's memory says nothing about any of them."""
        began = time.monotonic()
        started = datetime.now(UTC).isoformat(timespec="seconds")
        children = [Child(self._zygote, run, dict(run.config)) for run in runs]
        results = finish_together(children, max(self._timeout(run) for run in runs))
        seconds = time.monotonic() - began
        for run in runs:
            self._learn(run, seconds)
        return [{"started": started, "seconds": round(seconds, 3), **result} for result in results]

    def _counted(self, run: Run) -> dict[str, Any]:
        """A run under Nsight Compute, which starts the process that it watches itself."""
        began = time.monotonic()
        started = datetime.now(UTC).isoformat(timespec="seconds")
        result = nsight.measure(run.config, environment(), self._timeout(run))
        seconds = time.monotonic() - began
        self._learn(run, seconds)
        return {"started": started, "seconds": round(seconds, 3), **result}

    def _least(self, run: Run, unlimited: dict[str, Any]) -> dict[str, Any]:
        """The search for the least memory, several caps at a time."""
        search = least_memory.search(unlimited["peak_reserved_bytes"])
        trials: list[dict[str, Any]] = []
        caps = next(search)
        while True:
            outcomes: list[least_memory.Trial] = []
            for together in self._batches(caps, unlimited["peak_reserved_bytes"]):
                children = [Child(self._zygote, run, {**run.config, "cap_bytes": cap}) for cap in together]
                results = finish_together(children, self._timeout(run))
                if wrong := [r for r in results if r["outcome"] not in ("done", "out_of_memory")]:
                    return wrong[0]
                for cap, result in zip(together, results, strict=True):
                    trials.append({"cap_bytes": cap, **result})
                    outcomes.append(least_memory.Trial(cap, result["outcome"] == "done"))
            try:
                caps = search.send(outcomes)
            except StopIteration as stop:
                enough, too_little = stop.value
                break
        return {
            **unlimited,
            "least_bytes": enough,
            "too_little_bytes": too_little,
            "trials": sorted(trials, key=lambda trial: trial["cap_bytes"]),
        }

    def _batches(self, caps: list[int], each_bytes: int) -> Iterator[list[int]]:
        """As many at a time as the device has memory for, contexts included."""
        context = 1 << 30
        width = max(1, min(len(caps), self._total_bytes // (each_bytes + context)))
        for begin in range(0, len(caps), width):
            yield caps[begin : begin + width]

    def _timeout(self, run: Run) -> float:
        patience = max(_SHORTEST_TIMEOUT_S, _PATIENCE * run.seconds * self._pace[run.part])
        return min(self._deadline, time.monotonic() + patience)

    def _learn(self, run: Run, seconds: float) -> None:
        pace = self._pace[run.part]
        self._pace[run.part] = pace + _LEARNING * (seconds / run.seconds - pace)

    def _keep(self, run: Run, result: dict[str, Any], left: int) -> None:
        """Write a run down; one that the end of the visit has cut off never happened."""
        rest = self._deadline - time.monotonic()
        if result["outcome"] == "timeout" and rest <= 0:
            return
        record = {
            "schema": SCHEMA,
            "key": run.key(self.environment),
            "part": run.part,
            "config": dict(run.config),
            "environment": self.environment,
            "driver": self._driver,
            **result,
        }
        if run.part == "device":
            record["nvml_total_bytes"] = self._nvml_total
        self.store.append(record)
        if run.part == "device" and "properties" in record:
            self.store.write("device.toml", describe(record))
        # The bulk is on disk; what is told at the end are the outcomes.
        self.records.append({name: record.get(name) for name in ("part", "outcome", "error")})
        print(summary.progress(run, record, left, max(0.0, rest)), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = _options(arguments)
    began = time.monotonic()
    deadline = began + options.minutes * 60
    runs = [run for run in plan() if not options.only or run.part in options.only]
    if options.each is not None:
        runs = _first_of_each(runs, options.each)
    if options.list:
        print(summary.list_plan(runs))
        return 0
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _stop)
    status = 0
    zygote: Zygote | None = None
    visit: Visit | None = None
    try:
        packages = {name for run in runs for name in run.needs} - {"gpu", "ncu"}
        zygote = Zygote(sorted(packages), dry_run=options.dry_run)
        visit = Visit(zygote, options.output, deadline, dry_run=options.dry_run)
        todo = visit.remaining(runs)
        finished = sum(visit.store.is_finished(run.key(visit.environment)) for run in runs)
        print(", ".join(f"{name} {value}" for name, value in visit.environment.items()))
        print(summary.announce(todo, finished, options.minutes, zygote.missing), flush=True)
        visit.measure(todo)
    except Stopped as stopped:
        print("stopped: what is finished is kept", file=sys.stderr)
        status = stopped.exit_status
    except (RuntimeError, EOFError) as error:
        print(f"measure.py: {error or 'the process that forks the runs has ended'}", file=sys.stderr)
        status = 3
    finally:
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ending, signal.SIG_IGN)
        if zygote is not None:
            zygote.close()
    if visit is not None:
        left = len(visit.remaining(runs))
        seconds = time.monotonic() - began
        folder = visit.store.folder
        print(
            summary.conclude(visit.records, left, seconds, visit.store.size_bytes(), str(folder)), flush=True
        )
    return status


def _first_of_each(runs: Sequence[Run], count: int) -> list[Run]:
    taken: Counter[str] = Counter()
    first = []
    for run in runs:
        taken[run.part] += 1
        if taken[run.part] <= count:
            first.append(run)
    return first


def _stop(signal_number: int, _frame: object) -> None:
    raise Stopped(signal_number)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="measure.py", description="Measure what PyTorch needs on this machine's GPU."
    )
    parser.add_argument("--minutes", type=_minutes, default=20.0, help="when to stop (default 20)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path(__file__).resolve().parents[1] / "results",
        help="folder of results",
    )
    parser.add_argument("--only", choices=list(PARTS), action="append", help="this part; may be repeated")
    parser.add_argument(
        "--each", type=int, metavar="N", help="only the first N runs of each part: a quick look"
    )
    parser.add_argument("--list", action="store_true", help="print the plan and measure nothing")
    parser.add_argument(
        "--dry-run", action="store_true", help="on the CPU, cut down: checks the kit, measures nothing"
    )
    return parser.parse_args(arguments)


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < 1e4:
        raise argparse.ArgumentTypeError(f"{text}: expected a positive number of minutes")
    return minutes
