"""The batch size of the script that asks: it runs itself at small sizes, and is told them by its environment.

The first process starts its own command again for each size, recorded and on a phantom GPU. In these runs the
same call returns the size to record at, so that the script needs no option for its batch size.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from xmem.batch_size.find import (
    RECORDED_ACCUMULATION,
    RECORDED_SIZES,
    BatchSize,
    largest_batch,
    require_question,
)
from xmem.batch_size.samples import capture_samples
from xmem.errors import ConfigError
from xmem.estimation.question import ask

_TOLD = "XMEM_RECORDED_BATCH"


def find_own_batch_size(
    *,
    gpu: str | None = None,
    capacity: int | str | None = None,
    effective_batch: int | None = None,
    iterations: int = 3,
    timeout_s: float | None = None,
) -> BatchSize:
    """Find the largest batch of the running script, in runs of the same command beside it.

    In those runs, this call returns the size to record at, and 2 for the accumulation if an effective batch
    is asked for. What stands before the call in the script runs in each of them.

    Args:
        gpu: The GPU, by a name of ``xmem-fast gpus``.
        capacity: GPU memory instead, in bytes or as text such as ``11.5GiB``.
        effective_batch: Examples of an optimizer step, see ``find_batch_size``.
        iterations: Optimizer steps of each run.
        timeout_s: Seconds that each run may take.

    Raises:
        ConfigError: A setting is invalid, not even a batch of 1 fits, the job has several ranks, or the
            process has no command that can be started again.
        CaptureError: The script failed in a run.
    """
    question = ask(gpu=gpu, capacity=capacity)
    require_question(question, effective_batch)
    accumulation = 1 if effective_batch is None else RECORDED_ACCUMULATION
    if told := os.environ.get(_TOLD):
        return BatchSize(int(told), accumulation, int(told), 0, 0)
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise ConfigError(
            "a job of several ranks cannot run itself again",
            "find the batch before it starts: xmem-fast fit --dim batch=2,3 -o model.xmem -- torchrun ...",
        )
    command = _own_command()
    samples = capture_samples(
        lambda size: (command, _told(size)),
        RECORDED_SIZES,
        question.described_device,
        iterations=iterations,
        timeout_s=timeout_s,
    )
    return largest_batch(samples, question, effective_batch)


def _told(size: int) -> Mapping[str, str]:
    return {**os.environ, _TOLD: str(size)}


def _own_command() -> list[str]:
    """Return how this process was started.

    Raises:
        ConfigError: Not with a script or a module, but by hand or in a notebook.
    """
    arguments = sys.orig_argv[1:]
    if not arguments or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        raise ConfigError(
            "this process was not started with a script, so it cannot be started again",
            "pass a function to xmem.find_batch_size",
        )
    return [sys.executable, *arguments]
