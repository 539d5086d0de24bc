"""``xmem-fast capture``: record an unmodified training script without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from xmem.cli import options, output
from xmem.cli.capturing import CaptureSettings, capture_noting
from xmem.cli.options import CaptureMode


def capture(
    command: options.Command,
    trace: Annotated[
        Path, typer.Option("-o", "--output", metavar="TRACE", help="File to write the trace to.")
    ],
    mode: options.ModeChoice = CaptureMode.AUTO,
    no_gpu: options.NoGpu = False,
    python: options.Python = None,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
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
    as_json: options.Json = False,
) -> None:
    """Record a few iterations of a training script, on this machine and without a GPU."""
    from xmem.capture import Extent

    question = options.question(gpu, capacity)
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
    result = capture_noting(command, trace, settings, question, as_json=as_json)
    if as_json:
        output.print_json(
            {
                "schema_version": 1,
                "path": str(result.path),
                "iterations": result.iterations,
                "wall_s": result.wall_s,
                "exit_status": result.exit_status,
                "metadata": result.metadata,
            }
        )
    else:
        typer.echo(f"{result.path}: {result.iterations} iterations in {result.wall_s:.1f} s")
