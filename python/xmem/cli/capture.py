"""``xmem-fast capture``: record an unmodified training script without a GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from xmem.cli import options, output
from xmem.cli.options import CaptureMode
from xmem.errors import ConfigError

if TYPE_CHECKING:
    from xmem.capture import CaptureResult, Extent, Mode, PhantomMachine, TorchBuild
    from xmem.devices import Device


_STDERR = 2


@dataclass(frozen=True)
class CaptureSettings:
    """How a command is captured, as the options say it.

    Attributes:
        mode: As asked for.
        no_gpu: Whether a GPU of this machine is to be left alone.
        python: The interpreter that the command is run with, None when the command names it.
        gpus: Phantom GPUs.
        strict_capacity: Whether phantom memory ends where the GPU's does.
        keep_init: Whether weights are initialized in phantom mode.
        known_elements: Of tensors that keep values in phantom mode.
        values: ``FILE:LINE=NUMBER``, what reads of GPU memory give.
        cudnn: A newer cuDNN for planning.
        snapshot: Where the allocator's snapshot goes.
        extent: How far to record; three iterations by default.
        rank: The rank to trace; the one that needs most memory by default.
        timeout: In seconds.
        stacks: Whether every Python frame is recorded.
    """

    mode: CaptureMode = CaptureMode.AUTO
    no_gpu: bool = False
    python: Path | None = None
    gpus: int = 1
    strict_capacity: bool = False
    keep_init: bool = False
    known_elements: int = options.KNOWN_ELEMENTS
    values: tuple[str, ...] = ()
    cudnn: Path | None = None
    snapshot: Path | None = None
    extent: Extent | None = None
    rank: int | None = None
    timeout: float | None = None
    stacks: bool = False


def capture(
    command: options.Command,
    trace: Annotated[Path, typer.Option("-o", "--output", metavar="TRACE", help="Where the trace goes.")],
    mode: options.ModeChoice = CaptureMode.AUTO,
    no_gpu: options.NoGpu = False,
    python: options.Python = None,
    gpu: options.Gpu = None,
    capacity: options.Capacity = None,
    gpus: options.Gpus = 1,
    strict_capacity: options.StrictCapacity = False,
    keep_init: options.KeepInit = False,
    known_elements: options.KnownElements = options.KNOWN_ELEMENTS,
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
    timeout: options.Timeout = None,
    stacks: options.Stacks = False,
    as_json: options.Json = False,
) -> None:
    """Record a few iterations of a training script, on this machine and without a GPU."""
    from xmem.capture import Extent

    target = options.target_options(gpu, capacity, None, None)
    settings = CaptureSettings(
        mode=mode,
        no_gpu=no_gpu,
        python=python,
        gpus=gpus,
        strict_capacity=strict_capacity,
        keep_init=keep_init,
        known_elements=known_elements,
        values=tuple(value or ()),
        cudnn=cudnn,
        snapshot=snapshot,
        extent=Extent(iterations, until_steady, with_eval, until_end, calls, longest_batch),
        rank=rank,
        timeout=timeout,
        stacks=stacks,
    )
    result = capture_noting(command, trace, settings, target, as_json=as_json)
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


def capture_noting(
    command: list[str],
    trace: Path,
    settings: CaptureSettings,
    target: options.TargetOptions,
    *,
    as_json: bool,
) -> CaptureResult:
    """Capture, and note on stderr what is going on; the script prints there too where stdout is for JSON.

    Raises:
        CaptureError: The script failed, never trained, or the trace could not be written.
        ConfigError: A setting is invalid, or there is no CUDA build of torch for phantom mode.
    """
    from xmem.capture import Extent, path_with, with_python
    from xmem.capture import capture as capture_command

    environment = dict(os.environ)
    if settings.python is not None:
        command = with_python(settings.python, command)
        environment["PATH"] = path_with(settings.python, environment.get("PATH"))
    if target["alloc_conf"] is not None:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = target["alloc_conf"]
    build = _phantom_build(command, environment, settings, _device(target))
    machine = _machine(settings, target)
    mode: Mode = "real" if build is None else "phantom"
    where = f"a phantom {machine.device.name}" if mode == "phantom" else "the CPU"
    extent = settings.extent or Extent()
    output.note(f"recording {extent.text} on {where}; the script's own output follows")
    result = capture_command(
        command,
        trace,
        extent=extent,
        rank=settings.rank,
        timeout_s=settings.timeout,
        stacks=settings.stacks,
        env=environment,
        stdout=_STDERR if as_json else None,
        mode=mode,
        machine=machine,
    )
    trained = result.metadata.get("iteration_kind") != "call"
    if trained and result.iterations < extent.iterations:
        output.note(f"the script ended after {result.iterations} of {extent.iterations} iterations")
    if not trained:
        output.note("the script did not train: all that it did was recorded")
    refused = sorted({name for process in result.processes for name in process.calls_of("refused")})
    if refused:
        output.note(f"the phantom GPU refused {', '.join(refused)}; the script went on without")
    return result


def _phantom_build(
    command: list[str], environment: dict[str, str], settings: CaptureSettings, device: Device
) -> TorchBuild | None:
    """The CUDA build of torch that the phantom GPU is for; None where the script runs on the CPU.

    Raises:
        ConfigError: Phantom mode was asked for, and the script's torch is no CUDA build.
    """
    from xmem.capture import find_torch, has_gpu

    if settings.mode is CaptureMode.REAL:
        return None
    build = find_torch(command, environment)
    if build is not None and build.cuda is not None:
        # A GPU without CUDA is no phantom's business; asked for all the same, the machine file says so.
        fitting = device.vendor == "NVIDIA" and (settings.no_gpu or not has_gpu())
        return build if fitting or settings.mode is CaptureMode.PHANTOM else None
    if settings.mode is CaptureMode.PHANTOM:
        found = "no torch was found" if build is None else f"{build.python} has torch {build.version}"
        raise ConfigError(
            f"--mode phantom needs a CUDA build of torch, but {found}",
            "name a Python that has one with --python",
        )
    return None


def _machine(settings: CaptureSettings, target: options.TargetOptions) -> PhantomMachine:
    from xmem.capture import PhantomMachine

    return PhantomMachine(
        device=_device(target),
        count=settings.gpus,
        strict_capacity=settings.strict_capacity,
        keep_init=settings.keep_init,
        known_elements=settings.known_elements,
        values=dict(_value(text) for text in settings.values),
        cudnn_library=settings.cudnn,
        snapshot=settings.snapshot,
    )


def _device(target: options.TargetOptions) -> Device:
    """The GPU to describe; an RTX 3060 where none was named."""
    from xmem.devices import custom_device, find_device

    named = find_device(target["gpu"] or "rtx-3060")
    return named if target["capacity"] is None else custom_device(target["capacity"], like=named)


def _value(text: str) -> tuple[str, float]:
    """``train.py:57=0.25`` or ``Router.forward=0.25`` as its place and its number.

    Raises:
        ConfigError: It is not of that form.
    """
    where, _, number = text.rpartition("=")
    file, _, place = where.rpartition(":")
    try:
        is_function = not where.endswith(".py") and all(part.isidentifier() for part in where.split("."))
        if not is_function and (not file or int(place) < 1):
            raise ValueError
        return where, float(number)
    except ValueError:
        raise ConfigError(
            f"--value {text} is invalid",
            "write FILE:LINE=NUMBER, such as train.py:57=0.25, or FUNCTION=NUMBER, such as "
            "Router.forward=0.25",
        ) from None
