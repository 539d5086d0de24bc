"""The package torch-kitsune, which takes a model and the shape of one sample."""

from __future__ import annotations

from accuracy.rivals import factory
from workloads import Job
from workloads.weights import uninitialised_weights

_OPTIMIZERS = {"Adam": "adam", "AdamW": "adamw", "SGD": "sgd"}


def peak_bytes(job: Job) -> int:
    """Its prediction of peak memory for training.

    Raises:
        ValueError: It does not know the optimizer.
    """
    from kitsune.predict import predict_memory

    optimizer = _OPTIMIZERS.get(job.optimizer)
    if optimizer is None:
        raise ValueError(f"does not know {job.optimizer}")
    shape = (3, job.pixels, job.pixels) if job.family == "cnn" else (job.tokens,)
    with uninitialised_weights():
        model = factory.model(job.model)
    found = predict_memory(model, shape, batch_size=job.batch, optimizer=optimizer)
    return int(found.total_bytes)
