"""``xmem-fast run``: capture and estimate in one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from xmem.cli import options, output
from xmem.cli.capturing import CaptureSettings, capture_noting, trace_path
from xmem.cli.options import CaptureMode
from xmem.cli.reading import reading

_Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND", help="What you would type to train, such as: python train.py"),
]


def run(
    command: _Command = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Run the program that this YAML file is for: axolotl, LLaMA-Factory or torchtune. What "
            "follows -- is added to its command.",
        ),
    ] = None,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    alloc_conf: options.AllocConf = None,
    torch_version: options.TorchVersion = None,
    mode: options.ModeChoice = CaptureMode.AUTO,
    no_gpu: options.NoGpu = False,
    python: options.Python = None,
    gpus: options.Gpus = 1,
    strict_capacity: options.StrictCapacity = False,
    behind: options.Behind = False,
    compile_cache: options.CompileCache = None,
    keep_init: options.KeepInit = False,
    known_elements: options.KnownElements = options.KNOWN_ELEMENTS,
    imbalance: options.Imbalance = None,
    value: options.Values = None,
    cudnn: options.Cudnn = None,
    snapshot: options.Snapshot = None,
    iterations: options.Iterations = 3,
    until_steady: options.UntilSteady = False,
    with_eval: options.WithEval = False,
    until_end: options.UntilEnd = False,
    calls: options.Calls = 0,
    longest_batch: options.LongestBatch = False,
    rank: options.Rank = None,
    world_size: options.WorldSize = None,
    ranks: options.Ranks = None,
    gpus_per_node: options.GpusPerNode = None,
    timeout: options.Timeout = None,
    stacks: options.Stacks = False,
    keep_trace: Annotated[
        Path | None,
        typer.Option("--keep-trace", metavar="FILE", help="Keep the trace, for estimate and inspect."),
    ] = None,
    without_policy: options.WithoutPolicies = None,
    explain: options.Explain = False,
    show_packages: options.ShowPackages = False,
    as_json: options.Json = False,
    confidence: options.Confidence = None,
    request: options.Format = None,
    output_file: options.EstimateFile = None,
    page: options.Page = None,
    with_advice: options.WithAdvice = True,
    with_source: options.WithSource = True,
) -> None:
    """Record a training script, without a GPU, and report how much GPU memory it will need."""
    from xmem.capture import Extent
    from xmem.estimation.observation import observe
    from xmem.estimation.pipeline import answer

    output.require_one_format(as_json, request)
    question = options.question(gpu, capacity, alloc_conf, torch_version, cudnn, confidence)
    options.require_policies(without_policy)
    output.require_places({"-o": output_file, "--html": page})
    settings = CaptureSettings(
        mode=mode,
        no_gpu=no_gpu,
        python=python,
        gpus=gpus,
        strict_capacity=strict_capacity,
        behind=behind,
        compile_cache=compile_cache,
        keep_init=keep_init,
        known_elements=known_elements,
        imbalance=imbalance,
        values=tuple(value or ()),
        cudnn=cudnn,
        snapshot=snapshot,
        extent=Extent(iterations, until_steady, with_eval, until_end, calls, longest_batch),
        rank=rank,
        world_size=world_size,
        ranks=ranks,
        gpus_per_node=gpus_per_node,
        timeout=timeout,
        stacks=stacks,
    )
    with _typed(command or [], config, python) as typed, trace_path(keep_trace) as trace:
        captured = capture_noting(typed, trace, settings, question, as_json=as_json)
        with reading(str(trace)) as progress:
            observed = observe(trace, without_policies=without_policy or (), progress=progress)
            analysis = answer(observed, question, show_packages=show_packages)
    estimate = replace(
        analysis.estimate,
        trace=replace(analysis.estimate.trace, path="" if keep_trace is None else str(keep_trace)),
        timings_s={"capture": captured.wall_s, **analysis.estimate.timings_s},
    )
    output.give_analysis(
        replace(analysis, estimate=estimate),
        as_json=as_json,
        explain=explain,
        output=output_file,
        page=page,
        with_advice=with_advice,
        with_source=with_source,
        request=request,
        upper=confidence is not None,
    )


@contextmanager
def _typed(command: list[str], config: Path | None, python: Path | None) -> Iterator[list[str]]:
    """Yield the command to run; what had to be made for it is removed afterwards.

    Raises:
        BadParameter: There is none.
        ConfigError: The file is of no program that is known, or its model cannot be had.
    """
    if config is None:
        if not command:
            raise typer.BadParameter("no command was given; pass one after --, such as: -- python train.py")
        yield command
        return
    from xmem.capture.front_ends import training_of
    from xmem.capture.made_weights import with_weights

    with with_weights(training_of(config), command, python) as ready:
        if ready.note:
            output.note(ready.note)
        output.note(f"running {shlex.join(ready.command)}")
        yield ready.command
