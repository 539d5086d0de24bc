"""Options that several subcommands share."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmem.estimation.calibration import DEFAULT_CONFIDENCE
from xmem.reports.schedulers import Scheduler

if TYPE_CHECKING:
    from xmem.estimation.question import Question

Command = Annotated[
    list[str],
    typer.Argument(metavar="-- COMMAND", help="What you would type to train, such as: python train.py"),
]
Trace = Annotated[
    str,
    typer.Argument(
        metavar="TRACE",
        help="Profiler trace: .json, .json.gz, .json.zst, a URL, or - for standard input.",
        show_default=False,
    ),
]

At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="NAME=VALUE,...",
        help="Point at which to evaluate a fitted model, such as batch=16,seq=128.",
    ),
]

Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu", metavar="NAME", help="GPU to fit on: a name that `xmem-fast gpus` lists, or a .toml file."
    ),
]
Capacity = Annotated[
    str | None,
    typer.Option(
        "--capacity", metavar="SIZE", help="GPU memory instead, such as 11.5GiB; wins over --gpu's."
    ),
]
AllocConf = Annotated[
    str | None, typer.Option("--alloc-conf", metavar="STR", help="PYTORCH_CUDA_ALLOC_CONF of the job.")
]
TorchVersion = Annotated[
    str | None, typer.Option("--torch", metavar="VERSION", help="PyTorch version that the job will run with.")
]
WhatIfs = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="NAME=VALUE",
        help="A change of the script, such as optimizer=adamw:fused, zero_grad=after_step, "
        "set_to_none=false, accumulate=4, precision=bf16-autocast, checkpoint=GPT.blocks.*, "
        "release=train.py:41, chunk_loss=8; several are applied in order.",
    ),
]

WithoutPolicies = Annotated[
    list[str] | None,
    typer.Option(
        "--without-policy",
        metavar="NAME",
        help="Switch a policy off: a name that `xmem-fast policies` lists; may be given several times.",
    ),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Also show what each policy changed, in bytes at the peak.")
]

ShowPackages = Annotated[
    bool,
    typer.Option(
        "--show-packages", help="Name source lines of installed packages in place of the user's own."
    ),
]

Iterations = Annotated[int, typer.Option("--iterations", min=1, help="Optimizer steps to record.")]
UntilSteady = Annotated[
    bool,
    typer.Option(
        "--until-steady",
        help="Record until two iterations in a row bring no new peak, at most 64; for batches that differ.",
    ),
]
WithEval = Annotated[
    bool,
    typer.Option("--with-eval", help="Record until the first evaluation after a training step is over."),
]
UntilEnd = Annotated[bool, typer.Option("--until-end", help="Record until the script ends by itself.")]
Calls = Annotated[
    int,
    typer.Option(
        "--calls",
        min=0,
        help="Stop a script that does not train after this many calls of its model; 0: never stop it.",
        show_default=False,
    ),
]
LongestBatch = Annotated[
    bool,
    typer.Option(
        "--longest-batch",
        help="Make batches of the longest items of the data set, if their lengths are known: lists, and "
        "list columns of HuggingFace datasets.",
    ),
]
WorldSize = Annotated[
    int | None,
    typer.Option(
        "--world-size",
        min=1,
        help="Number of ranks that the script sees. Only those in --ranks run, each as one process. "
        "By default, every rank runs on phantom GPUs; in mode fake, some of what a launcher starts.",
        show_default=False,
    ),
]
Ranks = Annotated[
    str | None,
    typer.Option(
        "--ranks",
        metavar="RANKS",
        help="Ranks to run, such as 0,127,1023. auto runs the first, the last, and one of each pipeline "
        "stage.",
        show_default="auto, with --world-size",
    ),
]
GpusPerNode = Annotated[
    int | None,
    typer.Option(
        "--gpus-per-node",
        min=1,
        max=120,
        help="GPUs in each node of a job with --world-size.",
        show_default="what the launcher starts, or 8",
    ),
]
Rank = Annotated[
    int | None,
    typer.Option(
        "--rank",
        min=0,
        help="Trace this rank of a distributed job; by default the one that needs most memory, which may "
        "take a second run.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.001,
        help="Stop the script after this long, and estimate from what was seen if its model ran.",
    ),
]
Stacks = Annotated[
    bool, typer.Option("--stacks", help="Record all Python frames: slower, much larger traces.")
]


class CaptureMode(StrEnum):
    """Mode of running a script without a GPU."""

    AUTO = "auto"
    PHANTOM = "phantom"
    FAKE = "fake"
    REAL = "real"


ModeChoice = Annotated[
    CaptureMode,
    typer.Option(
        "--mode",
        help="phantom: a CUDA build of torch on GPUs that compute nothing, exact; fake: any build, on a CPU "
        "that computes nothing; real: on the CPU; auto: phantom if the script's torch is a CUDA build and "
        "there is no GPU, else fake.",
    ),
]
NoGpu = Annotated[bool, typer.Option("--no-gpu", help="Do not use a GPU of this machine in mode auto.")]
Python = Annotated[
    Path | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Run the command with this Python: -- train.py ARGS, or -- torchrun ARGS.",
    ),
]
Gpus = Annotated[int, typer.Option("--gpus", min=1, max=120, help="Phantom GPUs in the machine.")]
StrictCapacity = Annotated[
    bool,
    typer.Option(
        "--strict-capacity", help="Phantom memory runs out where the GPU's does, inside the script too."
    ),
]
Behind = Annotated[
    bool,
    typer.Option(
        "--behind",
        help="Keep the phantom GPU as far behind the script as a GPU can be: for about the most that "
        "memory of other streams and of collectives can take.",
    ),
]
CompileCache = Annotated[
    Path | None,
    typer.Option(
        "--compile-cache",
        metavar="FOLDER",
        file_okay=False,
        help="Keep what torch.compile and Triton compile in this folder: the next run takes it from there, "
        "as a second run on a GPU does, and needs less memory to tune kernels.",
    ),
]
KeepInit = Annotated[
    bool, typer.Option("--keep-init", help="Initialize weights in the modes phantom and fake: slower.")
]
KNOWN_ELEMENTS = 1 << 20
KnownElements = Annotated[
    int,
    typer.Option(
        "--known-elements",
        min=0,
        help="In the modes phantom and fake, tensors of up to this many elements keep the values that can be "
        "computed from what the host wrote; 0 keeps none.",
    ),
]
Imbalance = Annotated[
    str | None,
    typer.Option(
        "--imbalance",
        metavar="FACTOR",
        help="In the modes phantom and fake, the tokens that experts of the traced rank get, over their "
        "share: a number such as 1.5, or a quantile of a log-normal distribution, such as "
        "lognormal:0.3@0.99.",
        show_default="1, balanced",
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="FILE:LINE=NUMBER",
        help="In the modes phantom and fake, the value that a line reads from GPU memory; for a mask, the "
        "share that it selects. FUNCTION=NUMBER sets it for a function and those that it calls.",
    ),
]
Cudnn = Annotated[
    Path | None,
    typer.Option(
        "--cudnn",
        metavar="FILE",
        help="The libcudnn.so.9 that plans convolutions in phantom mode, in place of the script's own.",
    ),
]
PlannedBy = Annotated[
    Path | None,
    typer.Option(
        "--cudnn",
        metavar="FILE",
        help="The libcudnn.so.9 that plans the workspaces of convolutions; by default that of the extra "
        "cudnn. Can also be set as XMEM_CUDNN.",
    ),
]
Snapshot = Annotated[
    Path | None,
    typer.Option(
        "--snapshot", metavar="FILE", help="Keep the allocator's snapshot of phantom mode (pickle)."
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Page = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write a page that shows where the memory goes."),
]
WithAdvice = Annotated[
    bool, typer.Option("--advice/--no-advice", help="Include replayed advice on saving memory in the page.")
]
WithSource = Annotated[
    bool,
    typer.Option(
        "--source/--no-source", help="Show the text of source lines; without it a page or tree can be shared."
    ),
]
EstimateFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Also write the estimate to FILE, as JSON."),
]

Confidence = Annotated[
    float | None,
    typer.Option(
        "--confidence",
        metavar="SHARE",
        help="Confidence of each bound of the interval, such as 0.99; --format then asks for the upper one.",
        show_default=f"{DEFAULT_CONFIDENCE:g}",
    ),
]

Format = Annotated[
    Scheduler | None,
    typer.Option("--format", help="Print the request that a scheduler needs instead of the report."),
]


def require_policies(names: list[str] | None) -> None:
    """Check the names of policies before a capture that may take minutes.

    Raises:
        ConfigError: There is no such policy.
    """
    if names:
        from xmem.orchestration import plan

        plan.require_policies(names)


def question(
    gpu: str | None = None,
    capacity: str | None = None,
    alloc_conf: str | None = None,
    torch_version: str | None = None,
    cudnn: Path | None = None,
    confidence: float | None = None,
) -> Question:
    """Return the question that the options ask, checked before a capture that may take minutes.

    If a cuDNN is named, it is the one used from here on, in child processes too.

    Raises:
        ConfigError: The GPU is unknown, the size or confidence is invalid, or this version of PyTorch
            refuses the settings.
    """
    from xmem.estimation.question import ask

    asked = ask(
        gpu=gpu,
        capacity=capacity,
        alloc_conf=alloc_conf,
        torch_version=torch_version,
        confidence=DEFAULT_CONFIDENCE if confidence is None else confidence,
    )
    if cudnn is not None:
        from xmem.cudnn.libraries import LIBRARY_VARIABLE, library_at

        os.environ[LIBRARY_VARIABLE] = str(library_at(cudnn).path)
    return asked
