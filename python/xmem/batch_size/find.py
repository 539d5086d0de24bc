"""``xmem.find_batch_size``: from two small runs to the largest batch, and its accumulation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import field

from xmem.batch_size.samples import DIMENSION, capture_samples, record_samples
from xmem.devices.gpus import Device
from xmem.errors import ConfigError
from xmem.estimation.pipeline import answer
from xmem.estimation.question import Question, ask
from xmem.recording.recorder import RecordedDevice
from xmem.records import dataclass
from xmem.scaling import Prober, Sample, ScalingModel, find_largest, fit, substitute

RECORDED_SIZES = (2, 3)
"""Batch sizes of the runs that are made."""

RECORDED_ACCUMULATION = 2
"""Micro-batches of a step in these runs, where the script accumulates: gradients live through a forward."""


@dataclass(frozen=True)
class BatchSize:
    """A batch that fits, and how often to accumulate it.

    Attributes:
        size: Examples of a micro-batch, on one GPU.
        accumulation: Micro-batches of an optimizer step; 1 where no effective batch was asked for.
        largest: Largest batch that fits. ``size`` is smaller where the effective batch is no multiple of it.
        device_peak_bytes: Memory that the card must have at ``size``; 0 in a run that is being recorded.
        capacity_bytes: Memory of the GPU; 0 in a run that is being recorded.
        high_bytes: Upper bound of the device peak, with 0.9 confidence; None where nothing is known of it.
        model: What was fitted, for other questions; None in a run that is being recorded.
    """

    size: int
    accumulation: int
    largest: int
    device_peak_bytes: int
    capacity_bytes: int
    high_bytes: int | None = None
    model: ScalingModel | None = field(default=None, repr=False, compare=False)

    def __int__(self) -> int:
        return self.size

    @property
    def is_certain(self) -> bool:
        """Whether the batch fits up to the upper bound, too; if not, leave a margin."""
        return self.high_bytes is not None and self.high_bytes <= self.capacity_bytes

    @property
    def effective(self) -> int:
        """Examples of an optimizer step."""
        return self.size * self.accumulation


def find_batch_size(
    train: Callable[[int], object] | Sequence[str],
    *,
    gpu: str | None = None,
    capacity: int | str | None = None,
    effective_batch: int | None = None,
    alloc_conf: str | None = None,
    sizes: Sequence[int] = RECORDED_SIZES,
    iterations: int = 3,
    device: RecordedDevice = "fake",
    timeout_s: float | None = None,
) -> BatchSize:
    """Find the largest batch that fits a GPU, from runs at two small sizes and without touching a GPU.

    ::

        xmem.find_batch_size(["python", "train.py", "--batch-size", "{batch}"], gpu="rtx-4090").size

        def train_step(batch_size): ...     # a model on the CPU: forward, backward, optimizer.step()
        xmem.find_batch_size(train_step, gpu="rtx-4090", effective_batch=256)

    A command runs as ``xmem-fast fit`` runs it, with each size for ``{batch}`` and 2 for ``{accumulation}``:
    on a phantom GPU if its torch is a CUDA build, otherwise on the CPU, where nothing is computed. A function
    is recorded by ``xmem.record`` in this process.

    Args:
        train: A command, or a function that trains one step with a batch of the size that it is given.
        gpu: The GPU, by a name of ``xmem-fast gpus``.
        capacity: GPU memory instead, in bytes or as text such as ``11.5GiB``.
        effective_batch: Examples of an optimizer step. The answer is then the largest batch that divides it
            and fits, with the accumulation that makes up for the rest.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the job.
        sizes: Batch sizes to run, at least two.
        iterations: Optimizer steps of each run.
        device: Where a function is recorded, as for ``xmem.record``; ``auto`` measures two small batches on
            the GPU of this machine.
        timeout_s: Seconds that each run of a command may take.

    Raises:
        ConfigError: A setting is invalid, no GPU is named, or not even a batch of 1 fits.
        CaptureError: The script failed at a size, or never trained.
    """
    question = ask(gpu=gpu, capacity=capacity, alloc_conf=alloc_conf)
    require_question(question, effective_batch)
    if callable(train):
        samples = record_samples(train, sizes, device, iterations=iterations)
    else:
        accumulation = {"accumulation": RECORDED_ACCUMULATION} if "{accumulation}" in " ".join(train) else {}
        command = list(train)
        samples = capture_samples(
            lambda size: (substitute(command, {DIMENSION: size, **accumulation}), dict(os.environ)),
            sizes,
            question.described_device,
            iterations=iterations,
            timeout_s=timeout_s,
        )
    return largest_batch(samples, question, effective_batch)


def require_question(question: Question, effective_batch: int | None) -> Device:
    """Return the GPU; what is invalid is told before runs that take minutes.

    Raises:
        ConfigError: No GPU is named, or the effective batch is not positive.
    """
    if effective_batch is not None and effective_batch < 1:
        raise ConfigError(f"an effective batch of {effective_batch} is invalid", "use a number above 0")
    if question.device is None:
        raise ConfigError("no GPU was given", "pass gpu= or capacity=; `xmem-fast gpus` lists the names")
    return question.device


def largest_batch(samples: Sequence[Sample], question: Question, effective_batch: int | None) -> BatchSize:
    """Return the answer from the runs.

    Raises:
        ConfigError: The runs cannot be fitted, not even a batch of 1 fits, or the batch changes nothing.
    """
    device = require_question(question, effective_batch)
    model = fit(samples)
    found = find_largest(model, DIMENSION, device, question)
    probe = Prober(model, DIMENSION, question, {})
    size = found.value
    if effective_batch is not None:
        most = min(size, effective_batch)
        divisors = (value for value in range(most, 0, -1) if effective_batch % value == 0)
        size = next((value for value in divisors if probe(value).fits), 0)
    if size == 0:
        raise ConfigError(
            f"not even a batch of 1 fits on the {device.name}",
            "name a larger GPU, or see what `xmem-fast advise` suggests",
        )
    estimate = answer(model.at({DIMENSION: size}), question).estimate
    assert estimate.verdict is not None
    return BatchSize(
        size=size,
        accumulation=1 if effective_batch is None else effective_batch // size,
        largest=found.value,
        device_peak_bytes=estimate.device_peak_bytes,
        capacity_bytes=estimate.verdict.capacity_bytes,
        high_bytes=None if estimate.interval is None else estimate.interval.high_bytes,
        model=model,
    )
