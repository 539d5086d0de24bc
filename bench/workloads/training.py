"""A job from its description to its last iteration."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from workloads import cnn, transformer
from workloads.job import Job, Scale
from workloads.vision_operators import define_vision_operators
from workloads.weights import uninitialised_weights

LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Prepared:
    """A job whose model and batch are on the host; nothing has touched the device."""

    job: Job
    model: torch.nn.Module
    batch: tuple[torch.Tensor, torch.Tensor]


def prepare(job: Job, scale: Scale | None = None) -> Prepared:
    """Build model and batch on the host."""
    scale = scale or Scale()
    torch.manual_seed(0)
    define_vision_operators()
    with uninitialised_weights():
        if job.family == "cnn":
            return Prepared(job, cnn.build(job.model, scale), cnn.host_batch(job, scale))
        model = transformer.build(job.model, scale)
    vocabulary: int = model.config.vocab_size  # type: ignore[union-attr, assignment]
    return Prepared(job, model, transformer.host_batch(job, scale, vocabulary))


def train(
    prepared: Prepared,
    device: torch.device,
    after_iteration: Callable[[int], None] = lambda _: None,
) -> None:
    """Run the job's iterations.

    Args:
        prepared: Used up: its model moves to the device.
        device: Where to.
        after_iteration: Called with the number of each finished iteration, its tensors still alive.
    """
    job = prepared.job
    set_precision(job)
    loop = cnn.train if job.family == "cnn" else transformer.train
    loop(
        job,
        prepared.model,
        _optimizer_maker(job.optimizer),
        prepared.batch,
        device,
        partial(_forward_mode, job, device),
        after_iteration,
    )


def set_precision(job: Job) -> None:
    """What the job asks of matrix products and convolutions in fp32, for the whole process."""
    torch.backends.cuda.matmul.allow_tf32 = job.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = job.precision != "ieee"


def _optimizer_maker(name: str) -> Callable[[Any], torch.optim.Optimizer]:
    if name == "transformers.Adafactor":
        from transformers import Adafactor

        # With a learning rate of its own it takes none from outside.
        return partial(Adafactor, lr=LEARNING_RATE, relative_step=False)
    return partial(getattr(torch.optim, name), lr=LEARNING_RATE)


def _forward_mode(job: Job, device: torch.device) -> AbstractContextManager[Any]:
    if job.precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()
