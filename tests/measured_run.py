"""A measured run as a file of them would give it."""

from __future__ import annotations

from xmem.validation.runs import MeasuredRun


def measured(
    family: str = "CNN",
    model: str = "Net",
    optimizer: str = "SGD",
    batch: int = 8,
    *,
    zero_grad: int = 0,
    peak_bytes: int = 60 << 20,
    total_bytes: int = 12622168064,
) -> MeasuredRun:
    """A run on an RTX 3060 that did not run out of memory."""
    gpu = "NVIDIA GeForce RTX 3060"
    return MeasuredRun(
        where="runs.csv:2",
        identity=("", family, model, optimizer, str(batch), gpu, str(zero_grad)),
        set="",
        family=family,
        model=model,
        optimizer=optimizer,
        batch=batch,
        gpu=gpu,
        zero_grad=zero_grad,
        total_bytes=total_bytes,
        peak_bytes=peak_bytes,
        out_of_memory=False,
        published_bytes={},
        published_second_oom=None,
        published_seconds=None,
    )
