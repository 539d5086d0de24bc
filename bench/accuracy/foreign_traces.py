"""Holds estimates of ordinary profiler traces of the CPU against the phantom GPU.

    python bench/accuracy/foreign_traces.py --python ENV/bin/python --rows FILE [-o CALIBRATION]

Every job is recorded on the CPU by torch.profiler alone, the way others record: from the first iteration or
in the middle of the run, with shapes or without. The truth is what PyTorch's own allocator reserves for the
same job on the phantom GPU of the environment ENV, whose libraries should be the same releases as here:
transformers and torchvision, and of those in ``libraries.py`` all that both have (PYTHONPATH serves both).
Prints a row per trace and keeps it in FILE; jobs that are in FILE already are not run again. The last lines
leave out one library at a time. Writes the residuals of all rows, from which the intervals of such traces are
made. Takes about a minute a job on 2 cores.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from accuracy.libraries import LibraryJob, importable
from workloads.job import Job
from xmem.capture import PhantomMachine, capture
from xmem.devices.gpus import find_device
from xmem.errors import XmemError
from xmem.estimation.calibration import DEFAULT_CONFIDENCE, Calibration, LibraryResiduals, parse, render
from xmem.estimation.evidence import spread_of_iterations
from xmem.estimation.interval import left_open_by, way_of
from xmem.estimation.pipeline import analyze
from xmem.files.writing import write_whole

_HEADER = (
    "Truth over the nearer bound of what the estimate leaves open, less 1, of traces that torch.profiler\n"
    "alone recorded, by way, kind, library and job; 0 between the bounds. The truth is that of the phantom\n"
    "GPU, so the residuals of the phantom itself come on top.\n"
    "Written by: bench/accuracy/foreign_traces.py --rows ROWS.csv --beside FILE -o FILE"
)
_ITERATIONS = 5
_FIRST_WARM = 2

_TRANSFORMERS = (
    ("distilbert/distilgpt2", "AdamW"),
    ("openai-community/gpt2", "SGD"),
    ("EleutherAI/gpt-neo-125M", "Adam"),
    ("cerebras/Cerebras-GPT-111M", "RMSprop"),
    ("distilbert/distilgpt2", "Adadelta"),
    ("openai-community/gpt2", "AdamW"),
)
_CNNS = (
    ("MobileNetV2", "AdamW"),
    ("ResNet50", "SGD"),
    ("MobeNetV3Small", "Adam"),
    ("MnasNet", "RMSprop"),
    ("RegNetX400MF", "AdamW"),
    ("VGG16", "SGD"),
)


@dataclass(frozen=True)
class Row:
    """A trace and its truth.

    Attributes:
        project: The library of the model.
        job: The job.
        recorder: How the profiler recorded it.
        way: Way of estimating by which the calibration tells runs apart.
        kind: Kind of job, likewise.
        truth_bytes: Reserved memory of PyTorch's own allocator.
        found_bytes: The estimate.
        least_bytes: Least that the estimate leaves open.
        most_bytes: Most that it leaves open.
    """

    project: str
    job: str
    recorder: str
    way: str
    kind: str
    truth_bytes: int
    found_bytes: int
    least_bytes: int
    most_bytes: int

    @property
    def residual(self) -> float:
        """How far the truth lies outside of what the estimate leaves open, relative to the nearer bound."""
        if self.truth_bytes < self.least_bytes:
            return self.truth_bytes / self.least_bytes - 1
        return max(self.truth_bytes / self.most_bytes - 1, 0.0)


@dataclass(frozen=True)
class Recorder:
    """How a profiler records a job.

    Attributes:
        warm: Whether it starts in the middle of the run.
        shapes: Whether it records shapes.
    """

    warm: bool
    shapes: bool

    @property
    def title(self) -> str:
        """Name, for people."""
        return f"{'warm' if self.warm else 'cold'}, {'shapes' if self.shapes else 'no shapes'}"


RECORDERS = tuple(Recorder(warm, shapes) for shapes in (True, False) for warm in (True, False))


def jobs() -> Iterator[Job | LibraryJob]:
    """Yield what is recorded, at two places of zero_grad."""
    for number, (family, model, optimizer, batch) in enumerate(
        [("transformer", *each, 4) for each in _TRANSFORMERS] + [("cnn", *each, 16) for each in _CNNS]
    ):
        yield Job(family, model, optimizer, batch, zero_grad=(0, 2)[number % 2], iterations=_ITERATIONS)  # type: ignore[arg-type]
    yield from importable()


def title(job: Job | LibraryJob) -> str:
    """Return the name of a job, for people."""
    return f"{job.model}, {job.optimizer}, batch {job.batch}, zero_grad {job.zero_grad}"


def project(job: Job | LibraryJob) -> str:
    """Return the library that a job's model is from."""
    if isinstance(job, LibraryJob):
        return job.project
    return {"cnn": "torchvision", "transformer": "transformers"}[job.family]


def record(job: Job | LibraryJob, recorder: Recorder, output: Path) -> None:
    """Run a job on the CPU and write what torch.profiler records of it."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from accuracy import libraries
    from workloads import prepare, train
    from workloads.vision_operators import define_vision_operators

    define_vision_operators()
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=recorder.shapes)

    def after(iteration: int) -> None:
        if recorder.warm and iteration == _FIRST_WARM - 1:
            profiler.start()

    if isinstance(job, LibraryJob):
        if not recorder.warm:
            profiler.start()
        libraries.train(job, torch.device("cpu"), after)
    else:
        prepared = prepare(job)
        if not recorder.warm:
            profiler.start()
        train(prepared, torch.device("cpu"), after)
    profiler.stop()
    profiler.export_chrome_trace(str(output))


def main() -> None:
    """Record, run on the phantom, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", default="rtx-3090")
    parser.add_argument("--python", help="of an environment with a CUDA build of torch")
    parser.add_argument("--rows", type=Path, help="a CSV file that keeps the rows")
    parser.add_argument("--project", help="run the jobs of this library alone")
    parser.add_argument(
        "--beside", type=Path, help="an earlier calibration, whose libraries are kept that the rows lack"
    )
    parser.add_argument("-o", "--output", type=Path, help="write the calibration here")
    parser.add_argument("--record", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    everything = list(jobs())
    if options.record is not None:
        job, recorder = options.record
        record(everything[job], RECORDERS[recorder], options.to)
        return
    rows = _kept(options.rows)
    known = {(row.project, row.job) for row in rows}
    for number, job in enumerate(everything):
        chosen = options.project in (None, project(job))
        if chosen and (project(job), title(job)) not in known:
            rows += _held_against_the_phantom(number, job, options.python, options.gpu)
            _keep(options.rows, rows)
    beside = parse("" if options.beside is None else options.beside.read_text())
    calibration = _with_libraries_of(beside, _calibrated(rows))
    for way, kinds in calibration.items():
        for kind, residuals in kinds.items():
            alike = [row for row in rows if (row.way, row.kind) == (way, kind)]
            print(f"{way}, {kind}: {_covered(alike, residuals)}")
    if options.output is not None:
        write_whole(options.output, render(calibration, _HEADER).encode())


def _held_against_the_phantom(number: int, job: Job | LibraryJob, python: str, gpu: str) -> list[Row]:
    rows = []
    with TemporaryDirectory() as folder:
        try:
            truth = _truth(job, python, gpu, Path(folder))
        except XmemError as error:
            print(f"{project(job)}: {title(job)}: left out: {error}", flush=True)
            return []
        for which, recorder in enumerate(RECORDERS):
            trace = Path(folder) / "trace.json"
            subprocess.run(
                [sys.executable, __file__, "--record", str(number), str(which), "--to", str(trace)],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            try:
                row = _row(job, recorder, trace, gpu, truth)
            except XmemError as error:
                print(f"{title(job)}, {recorder.title}: {error}", flush=True)
                continue
            rows.append(row)
            off = row.found_bytes / truth - 1
            print(
                f"{row.project}: {row.job}, {row.recorder}: {row.found_bytes:,} of {truth:,} ({off:+.2%}), "
                f"{row.residual:+.2%} outside",
                flush=True,
            )
    return rows


def _row(job: Job | LibraryJob, recorder: Recorder, trace: Path, gpu: str, truth: int) -> Row:
    analysis = analyze(trace, gpu=gpu)
    stages, verdict = analysis.stages, analysis.verdict
    bounds = analysis.estimate.simulation.bounds
    spread = spread_of_iterations(stages.trace, stages.workload, stages.requests, stages.unlimited)
    least, most = left_open_by(stages, verdict, bounds, spread)
    found = verdict.reserved_bytes
    way, kind = way_of(stages)
    return Row(
        project(job),
        title(job),
        recorder.title,
        way,
        kind,
        truth,
        found,
        found if least is None else min(least, found),
        found if most is None else max(most, found),
    )


def _kept(path: Path | None) -> list[Row]:
    if path is None or not path.is_file():
        return []
    with path.open(newline="") as file:
        return [
            Row(**{name: int(value) if name.endswith("_bytes") else value for name, value in row.items()})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        ]


def _keep(path: Path | None, rows: Sequence[Row]) -> None:
    if path is None or not rows:
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, asdict(rows[0]))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def _calibrated(rows: Sequence[Row]) -> dict[str, dict[str, LibraryResiduals]]:
    """Return the residuals of rows by way, kind, library and job."""
    by_job: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = defaultdict(dict)
    for row in rows:
        jobs = by_job[row.way, row.kind].setdefault(row.project, {})
        jobs.setdefault(row.job, []).append(row.residual)
    calibration: dict[str, dict[str, LibraryResiduals]] = defaultdict(dict)
    for (way, kind), libraries in sorted(by_job.items()):
        calibration[way][kind] = LibraryResiduals(
            {name: tuple(map(tuple, jobs.values())) for name, jobs in sorted(libraries.items())}
        )
    return calibration


def _with_libraries_of(
    beside: Calibration, measured: dict[str, dict[str, LibraryResiduals]]
) -> dict[str, dict[str, LibraryResiduals]]:
    """Return a calibration with the libraries of an earlier one added, unless they were measured again."""
    merged: dict[str, dict[str, LibraryResiduals]] = {way: dict(kinds) for way, kinds in measured.items()}
    for way, kinds in beside.items():
        for kind, known in kinds.items():
            if isinstance(known, LibraryResiduals):
                again = merged.setdefault(way, {}).get(kind, LibraryResiduals({}))
                both = {**known.libraries, **again.libraries}
                merged[way][kind] = LibraryResiduals(dict(sorted(both.items())))
    return merged


def _covered(rows: Sequence[Row], residuals: LibraryResiduals) -> str:
    """Describe how many truths the intervals hold that the other libraries give."""
    inside, traces = residuals.held_out(DEFAULT_CONFIDENCE)
    low, high = residuals.lower(DEFAULT_CONFIDENCE), residuals.upper(DEFAULT_CONFIDENCE)
    errors = [row.found_bytes / row.truth_bytes - 1 for row in rows]
    return (
        f"{residuals.words}, {inside} of {traces} truths inside, one library left out at a time; "
        f"interval {low:+.1%} to {high:+.1%}{'' if residuals.is_enough else ', not given'}; "
        + (f"errors of these rows {min(errors):+.1%} to {max(errors):+.1%}" if errors else "no rows here")
    )


def _truth(job: Job | LibraryJob, python: str, gpu: str, folder: Path) -> int:
    if isinstance(job, LibraryJob):
        command = [str(Path(__file__).with_name("libraries.py")), *job.arguments]
    else:
        family = {"cnn": "CNN", "transformer": "Transformer"}[job.family]
        command = [
            str(Path(__file__).with_name("train.py")),
            *(family, job.model, job.optimizer, str(job.batch), str(job.zero_grad)),
            *("--iterations", str(job.iterations)),
        ]
    done = capture(
        [python, *command],
        folder / "phantom.json",
        iterations=job.iterations,
        mode="phantom",
        machine=PhantomMachine(device=find_device(gpu)),
    )
    return int(done.metadata["phantom"]["ranks"][0]["devices"][0]["peak_reserved_bytes"])


if __name__ == "__main__":
    main()
