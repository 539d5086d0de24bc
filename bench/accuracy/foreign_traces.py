"""Holds estimates of ordinary profiler traces of the CPU against the phantom GPU.

    python bench/accuracy/foreign_traces.py --gpu rtx-3090 --python ENV/bin/python [-o CALIBRATION]

Every job is recorded on the CPU by torch.profiler alone, the way others record: from the first iteration or
in the middle of the run, with shapes or without. The truth is what PyTorch's own allocator reserves for the
same job on the phantom GPU of the environment ENV, whose transformers and torchvision should be the same
releases as here. Prints a row per trace, and writes the residuals that the intervals of such traces are made
from. Takes about 10 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import xmem
from workloads.job import Job
from xmem.capture import PhantomMachine, capture
from xmem.devices.gpus import find_device
from xmem.errors import XmemError
from xmem.estimation.calibration import Residuals, render
from xmem.files.writing import write_whole

_HEADER = (
    "Truth over estimate, less 1, of traces that torch.profiler alone recorded, by way and kind. The truth\n"
    "is that of the phantom GPU, so the residuals of the phantom itself come on top.\n"
    "Written by: bench/accuracy/foreign_traces.py -o FILE"
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
class Recording:
    """A job and how a profiler records it.

    Attributes:
        job: The job.
        warm: Whether the profiler starts in the middle of the run.
        shapes: Whether it records shapes.
    """

    job: Job
    warm: bool
    shapes: bool

    @property
    def title(self) -> str:
        """Name of the recording, for people."""
        job = self.job
        begin = "warm" if self.warm else "cold"
        shapes = "shapes" if self.shapes else "no shapes"
        return (
            f"{job.model}, {job.optimizer}, batch {job.batch}, zero_grad {job.zero_grad}, {begin}, {shapes}"
        )


def recordings() -> Iterator[Recording]:
    """Yield what is recorded: each model with each of the recorder's settings, at two places of zero_grad."""
    for number, (family, model, optimizer, batch) in enumerate(
        [("transformer", *each, 4) for each in _TRANSFORMERS] + [("cnn", *each, 16) for each in _CNNS]
    ):
        job = Job(family, model, optimizer, batch, zero_grad=(0, 2)[number % 2], iterations=_ITERATIONS)  # type: ignore[arg-type]
        for shapes in (True, False):
            for warm in (True, False):
                yield Recording(job, warm, shapes)


def record(recording: Recording, output: Path) -> None:
    """Run a job on the CPU and write what torch.profiler records of it."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from workloads import prepare, train

    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=recording.shapes)
    prepared = prepare(recording.job)
    if not recording.warm:
        profiler.start()

    def after(iteration: int) -> None:
        if recording.warm and iteration == _FIRST_WARM - 1:
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
    parser.add_argument("-o", "--output", type=Path, help="write the calibration here")
    parser.add_argument("--record", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    everything = list(recordings())
    if options.record is not None:
        record(everything[options.record], options.to)
        return
    residuals: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    truths: dict[Job, int] = {}
    with TemporaryDirectory() as folder:
        for number, recording in enumerate(everything):
            trace = Path(folder) / "trace.json"
            subprocess.run(
                [sys.executable, __file__, "--record", str(number), "--to", str(trace)],
                check=True,
                stderr=subprocess.DEVNULL,
            )
            if recording.job not in truths:
                truths[recording.job] = _truth(recording.job, options.python, options.gpu, Path(folder))
            truth = truths[recording.job]
            try:
                found = xmem.estimate(trace, gpu=options.gpu).peak_reserved_bytes
            except XmemError as error:
                print(f"{recording.title}: {error}", flush=True)
                continue
            way = "foreign" if recording.shapes else "foreign_without_shapes"
            kind = "convolutional" if recording.job.family == "cnn" else "other"
            residuals[way, kind].append((recording.job.model, truth / found - 1))
            print(f"{recording.title}: {found:,} of {truth:,} ({found / truth - 1:+.2%})", flush=True)
    calibration: dict[str, dict[str, Residuals]] = defaultdict(dict)
    for (way, kind), rows in residuals.items():
        models = len({model for model, _ in rows})
        calibration[way][kind] = Residuals(tuple(sorted(value for _, value in rows)), models)
    if options.output is not None:
        write_whole(options.output, render(calibration, _HEADER).encode())


def _truth(job: Job, python: str, gpu: str, folder: Path) -> int:
    arguments = [
        {"cnn": "CNN", "transformer": "Transformer"}[job.family],
        job.model,
        job.optimizer,
        str(job.batch),
    ]
    script = str(Path(__file__).with_name("train.py"))
    done = capture(
        [python, script, *arguments, str(job.zero_grad), "--iterations", str(job.iterations)],
        folder / "phantom.json",
        iterations=job.iterations,
        mode="phantom",
        machine=PhantomMachine(device=find_device(gpu)),
    )
    return int(done.metadata["phantom"]["ranks"][0]["devices"][0]["peak_reserved_bytes"])


if __name__ == "__main__":
    main()
