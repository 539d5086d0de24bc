"""What an estimate costs as a whole process: seconds by stage, memory, and how both grow with the file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from measure import MB, ChildFailedError, Run, Spread, interleaved, run

BENCH = Path(__file__).parent
XMEM_FAST = Path(sys.executable).with_name("xmem-fast")
CAPACITY = "24GiB"
DONE, DOES_NOT_FIT = 0, 1

READ = "read"
AROUND = "start-up and output"


@dataclass(frozen=True)
class EstimateResult:
    """``xmem-fast estimate --json`` on one file.

    Attributes:
        file_bytes: Length of the file as it is stored.
        text_bytes: Length of the JSON in it.
        events: Events in the file.
        process_s: Seconds of the whole process.
        stages_s: Seconds by stage as the estimate tells them, and what the process takes around them.
        peak_anonymous_bytes: Memory of the whole process but for pages of files.
    """

    file_bytes: int
    text_bytes: int
    events: int
    process_s: Spread
    stages_s: dict[str, Spread]
    peak_anonymous_bytes: int

    @property
    def inside_s(self) -> float:
        """Seconds of the stages, which do not count the start of Python."""
        return sum(spread.median for stage, spread in self.stages_s.items() if stage != AROUND)

    @property
    def read_mb_per_s(self) -> float:
        return self.text_bytes / MB / self.stages_s[READ].median


def estimating(trace: Path) -> Callable[..., Run]:
    command = [str(XMEM_FAST), "estimate", str(trace), "--capacity", CAPACITY, "--json"]
    return partial(run, command, exit_codes=(DONE, DOES_NOT_FIT))


def measure_estimates(traces: Sequence[Path], repeats: int) -> dict[Path, EstimateResult]:
    """Estimate every trace in turn, round after round."""
    cases = {trace: estimating(trace) for trace in traces}
    weighed = {trace: start(weigh=True) for trace, start in cases.items()}
    runs = interleaved(cases, repeats)
    return {trace: _result(trace, weighed[trace], runs[trace]) for trace in traces}


def _result(trace: Path, weighed: Run, runs: Sequence[Run]) -> EstimateResult:
    summary = weighed.output["trace"]
    stages = {
        stage: Spread.of([one.output["timings_s"][stage] for one in runs])
        for stage in weighed.output["timings_s"]
    }
    stages[AROUND] = Spread.of([one.wall_s - sum(one.output["timings_s"].values()) for one in runs])
    return EstimateResult(
        file_bytes=trace.stat().st_size,
        text_bytes=summary["bytes"],
        events=sum(summary["events"].values()),
        process_s=Spread.of([one.wall_s for one in runs]),
        stages_s=stages,
        peak_anonymous_bytes=weighed.peak_anonymous_bytes or 0,
    )


def growth(results: Sequence[EstimateResult]) -> float:
    """By how much a time differs at most from a straight line: so much at once, and so much a byte.

    The line is the one with the least sum of squared relative differences.
    """
    text_bytes = np.array([one.text_bytes for one in results], float)
    seconds = np.array([one.inside_s for one in results])
    design = np.stack([np.ones(len(results)), text_bytes], axis=1) / seconds[:, None]
    (at_once, a_byte), *_ = np.linalg.lstsq(design, np.ones(len(results)))
    return float(np.max(np.abs((at_once + a_byte * text_bytes) / seconds - 1)))


def measure_compressed(plain: Path, compressed: Mapping[str, Path], repeats: int) -> dict[str, Spread | str]:
    """The read rate of compressed files over that of the plain one, round by round.

    Returns:
        By kind of compression; words where the file could not be read.
    """
    cases = {"plain": estimating(plain)}
    ratios: dict[str, Spread | str] = {}
    for kind, trace in compressed.items():
        try:
            estimating(trace)()
        except ChildFailedError as failure:
            ratios[kind] = failure.last_words.replace(str(trace), trace.name)
        else:
            cases[kind] = estimating(trace)
    runs = interleaved(cases, repeats)
    for kind in cases.keys() - {"plain"}:
        ratios[kind] = Spread.of(
            [
                reference.output["timings_s"][READ] / one.output["timings_s"][READ]
                for reference, one in zip(runs["plain"], runs[kind], strict=True)
            ]
        )
    return ratios


def measure_threads(trace: Path, repeats: int) -> Spread:
    """How many times faster several estimates in one process are from threads than one after the other."""
    command = [sys.executable, str(BENCH / "several_traces.py"), str(trace)]
    return Spread.of([run(command).output["speed_up"] for _ in range(repeats)])


def measure_startup(repeats: int) -> Spread:
    """Seconds of ``xmem-fast --version``: the interpreter, the imports, nothing else."""
    return Spread.of([run([str(XMEM_FAST), "--version"]).wall_s for _ in range(repeats)])
