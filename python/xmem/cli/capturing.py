"""Run the captures that commands ask for, as their options describe, and note the progress on stderr."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from xmem.cli import options, output
from xmem.cli.options import CaptureMode
from xmem.errors import ConfigError
from xmem.files.scratch import scratch_folder
from xmem.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xmem.capture import CaptureResult, Extent, Mode, PhantomMachine, TorchBuild
    from xmem.devices.gpus import Device
    from xmem.estimation.question import Question


_STDERR = 2


@dataclass(frozen=True)
class CaptureSettings:
    """Settings for capturing a command, taken from the options.

    Attributes:
        mode: The requested mode.
        no_gpu: Whether to leave the GPUs of this machine alone.
        python: Interpreter to run the command with, None when the command names it.
        gpus: Number of phantom GPUs.
        strict_capacity: Whether phantom memory ends where the GPU's does.
        behind: Whether the phantom GPU is behind the script.
        compile_cache: Folder that keeps compiled code for the next run.
        keep_init: Whether weights are initialized in phantom mode.
        known_elements: Largest number of elements of a tensor that keeps its values in phantom mode.
        imbalance: The imbalance of experts, as text.
        values: ``FILE:LINE=NUMBER``, the values that reads of GPU memory return.
        cudnn: A newer cuDNN for planning.
        snapshot: File to write the allocator's snapshot to.
        extent: How far to record; three iterations by default.
        rank: The rank to trace; the one that needs most memory by default.
        world_size: Number of ranks of a job of which only some run.
        ranks: Those that run, or ``auto``.
        gpus_per_node: GPUs of each of its nodes.
        timeout: Timeout in seconds.
        stacks: Whether every Python frame is recorded.
        launches: Whether every launch on the phantom GPU is written down.
    """

    mode: CaptureMode = CaptureMode.AUTO
    no_gpu: bool = False
    python: Path | None = None
    gpus: int = 1
    strict_capacity: bool = False
    behind: bool = False
    compile_cache: Path | None = None
    keep_init: bool = False
    known_elements: int = options.KNOWN_ELEMENTS
    imbalance: str | None = None
    values: tuple[str, ...] = ()
    cudnn: Path | None = None
    snapshot: Path | None = None
    extent: Extent | None = None
    rank: int | None = None
    world_size: int | None = None
    ranks: str | None = None
    gpus_per_node: int | None = None
    timeout: float | None = None
    stacks: bool = False
    launches: bool = False


def capture_noting(
    command: list[str],
    trace: Path,
    settings: CaptureSettings,
    question: Question,
    *,
    as_json: bool,
) -> CaptureResult:
    """Capture, and note the progress on stderr; the script prints there too when stdout is for JSON.

    Raises:
        CaptureError: The script failed, never trained, or the trace could not be written.
        ConfigError: A setting is invalid, or there is no CUDA build of torch for phantom mode.
    """
    from xmem.capture import DescribedGpu, Extent, launched_world, path_with, with_python, world_of
    from xmem.capture import capture as capture_command

    world = world_of(settings.world_size, settings.ranks, settings.gpus_per_node, command)
    environment = dict(os.environ)
    if settings.python is not None:
        command = with_python(settings.python, command)
        environment["PATH"] = path_with(settings.python, environment.get("PATH"))
    if question.alloc_conf is not None:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = question.alloc_conf
    device = question.described_device
    build = _torch_build(command, environment, settings)
    machine = _machine(settings, device)
    mode = _mode(settings, build, device)
    for option, given in (("--behind", settings.behind), ("--compile-cache", settings.compile_cache)):
        if given and mode != "phantom":
            raise ConfigError(
                f"{option} needs a phantom GPU, but this run is on the CPU",
                "name a Python that has a CUDA build of torch with --python",
            )
    if mode == "fake" and world is None:  # which does not run ranks side by side
        world = launched_world(command)
    where = {
        "phantom": f"a phantom {machine.device.name}",
        "fake": "the CPU, which computes nothing",
        "real": "the CPU",
    }[mode]
    extent = settings.extent or Extent()
    if mode == "fake" and settings.mode is CaptureMode.AUTO:
        _tell_of_exact_way(build)
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
        gpu=DescribedGpu.of(device),
        mode=mode,
        machine=machine,
        world=world,
    )
    trained = result.metadata.get("iteration_kind") != "call"
    if trained and result.iterations < extent.iterations:
        output.note(f"the script ended after {result.iterations} of {extent.iterations} iterations")
    if not trained:
        output.note("the script did not train: everything it did was recorded")
    refused = sorted({name for process in result.processes for name in process.calls_of("refused")})
    if refused:
        output.note(f"the phantom GPU refused {', '.join(refused)}; the script continued without them")
    return result


def _tell_of_exact_way(build: TorchBuild | None) -> None:
    """Tell a user whose torch is no CUDA build how PyTorch's own allocator can be asked."""
    from xmem.capture.overlay import describe_way_to

    if build is not None and build.cuda is None and (way := describe_way_to(build)) is not None:
        output.note(way)


def _torch_build(
    command: list[str], environment: dict[str, str], settings: CaptureSettings
) -> TorchBuild | None:
    """Return the torch of the script, if phantom GPUs are possible; None if there is none.

    Raises:
        ConfigError: Phantom mode was asked for, and this machine cannot have a phantom GPU.
    """
    from xmem.capture import find_torch
    from xmem.capture.overlay import is_possible, require_possible

    if settings.mode is CaptureMode.PHANTOM:
        require_possible()
    if settings.mode in (CaptureMode.REAL, CaptureMode.FAKE) or not is_possible():
        return None
    return find_torch(command, environment)


def _mode(settings: CaptureSettings, build: TorchBuild | None, device: Device) -> Mode:
    """Return how the script runs: on phantom GPUs if its torch is a CUDA build.

    Raises:
        ConfigError: Phantom mode was asked for, and the script's torch is not a CUDA build.
    """
    from xmem.capture import has_gpu

    if settings.mode is CaptureMode.REAL:
        return "real"
    if build is not None and build.cuda is not None:
        # Phantom mode is for CUDA GPUs; if it is requested for another, the machine file reports the error.
        fitting = device.vendor == "NVIDIA" and (settings.no_gpu or not has_gpu())
        return "phantom" if fitting or settings.mode is CaptureMode.PHANTOM else "fake"
    if settings.mode is CaptureMode.PHANTOM:
        found = "no torch was found" if build is None else f"{build.python} has torch {build.version}"
        raise ConfigError(
            f"--mode phantom needs a CUDA build of torch, but {found}",
            "name a Python that has one with --python",
        )
    return "fake"


def _machine(settings: CaptureSettings, device: Device) -> PhantomMachine:
    from xmem.capture import PhantomMachine, imbalance_of

    return PhantomMachine(
        device=device,
        count=settings.gpus,
        strict_capacity=settings.strict_capacity,
        behind=settings.behind,
        compile_cache=settings.compile_cache,
        keep_init=settings.keep_init,
        known_elements=settings.known_elements,
        imbalance=imbalance_of(settings.imbalance),
        values=dict(_value(text) for text in settings.values),
        cudnn_library=settings.cudnn,
        snapshot=settings.snapshot,
        launches=settings.launches,
    )


def _value(text: str) -> tuple[str, float]:
    """Split ``train.py:57=0.25`` or ``Router.forward=0.25`` into its place and its number.

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


@contextmanager
def trace_path(keep_trace: Path | None) -> Iterator[Path]:
    """Name the trace of a command: the one that the user keeps, or one that is gone afterwards."""
    if keep_trace is not None:
        yield keep_trace
        return
    with scratch_folder() as folder:
        yield folder / "trace.json"
