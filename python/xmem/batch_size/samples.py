"""Runs of a command, or of a training step, at a few small batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from xmem.capture import DescribedGpu, Extent, Mode, PhantomMachine, capture, find_torch
from xmem.capture.overlay import is_possible
from xmem.devices.gpus import Device
from xmem.estimation.observation import observe
from xmem.files.scratch import scratch_folder
from xmem.recording.recorder import RecordedDevice, record
from xmem.scaling import Sample

_STDERR = 2

DIMENSION = "batch"

CommandAt = Callable[[int], tuple[Sequence[str], Mapping[str, str]]]
"""The command that runs at a batch size, and its environment."""


def capture_samples(
    command_at: CommandAt, sizes: Sequence[int], device: Device, *, iterations: int, timeout_s: float | None
) -> list[Sample]:
    """Capture a command once for each size; what it prints goes to stderr.

    Raises:
        CaptureError: The script failed at a size, or never trained.
    """
    samples = []
    with scratch_folder() as folder:
        for size in sizes:
            command, environment = command_at(size)
            trace = folder / f"{DIMENSION}{size}.json"
            capture_trace(command, trace, environment, device, iterations=iterations, timeout_s=timeout_s)
            samples.append(Sample({DIMENSION: size}, observe(trace)))
    return samples


def capture_trace(
    command: Sequence[str],
    trace: Path,
    environment: Mapping[str, str],
    device: Device,
    *,
    iterations: int,
    timeout_s: float | None = None,
) -> None:
    """Capture a command; what it prints goes to stderr.

    It runs on a phantom GPU where its torch is a CUDA build, also if this machine has a real GPU, and
    otherwise on the CPU, where nothing is computed.

    Raises:
        CaptureError: The script failed, or never trained.
    """
    capture(
        command,
        trace,
        extent=Extent(iterations),
        timeout_s=timeout_s,
        env=environment,
        gpu=DescribedGpu.of(device),
        stdout=_STDERR,
        mode=_mode(command, environment, device),
        machine=PhantomMachine(device=device),
    )


def record_samples(
    train_step: Callable[[int], object], sizes: Sequence[int], device: RecordedDevice, *, iterations: int
) -> list[Sample]:
    """Record a function once for each size; each recording calls it ``iterations`` times.

    Raises:
        XmemError: The function made no tensor.
    """
    samples = []
    with scratch_folder() as folder:
        for size in sizes:
            with record(device=device) as recorder:
                for _ in range(iterations):
                    train_step(size)
            trace = Path(folder, f"{DIMENSION}{size}.json")
            recorder.write_trace(trace)
            samples.append(Sample({DIMENSION: size}, observe(trace)))
    return samples


def _mode(command: Sequence[str], environment: Mapping[str, str], device: Device) -> Mode:
    if device.vendor != "NVIDIA" or not is_possible():
        return "fake"
    build = find_torch(command, environment)
    return "phantom" if build is not None and build.cuda is not None else "fake"
