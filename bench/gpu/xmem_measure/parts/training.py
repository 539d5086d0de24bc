"""Part 1: what a training job needs."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import torch

from workloads import Job, Prepared, prepare, train
from xmem_measure.meter import Meter, Usage, is_out_of_memory
from xmem_measure.session import Session


def run(config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Train for the job's iterations with the allocator recorded."""
    prepared = prepare(Job(**config), session.scale)
    session.start()
    meter = session.meter
    meter.start_history()
    result = trained(prepared, meter)
    # The process holds what its last iteration left: what is not reserved are the context and its kernels.
    session.moment("end")
    result["history"] = meter.history().to_json()
    return result


def trained(prepared: Prepared, meter: Meter) -> dict[str, Any]:
    """Train, and say per iteration what the allocator held; running out of memory is a result too."""
    usages: list[Usage] = []
    seconds: list[float] = []
    began = time.monotonic()

    def after_iteration(_: int) -> None:
        nonlocal began
        usages.append(meter.usage())
        seconds.append(time.monotonic() - began)
        began = time.monotonic()

    result: dict[str, Any] = {"outcome": "done"}
    try:
        with meter.watching():
            train(prepared, meter.device, after_iteration)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        result = {"outcome": "out_of_memory", "error": str(error)[:2000]}
        with suppress(RuntimeError):
            usages.append(meter.usage())
    return result | {
        "peak_allocated_bytes": max((usage.max_allocated_bytes for usage in usages), default=0),
        "peak_reserved_bytes": max((usage.max_reserved_bytes for usage in usages), default=0),
        "iterations": {
            "seconds": [round(duration, 6) for duration in seconds],
            "max_allocated_bytes": [usage.max_allocated_bytes for usage in usages],
            "max_reserved_bytes": [usage.max_reserved_bytes for usage in usages],
            "allocated_bytes": [usage.allocated_bytes for usage in usages],
            "reserved_bytes": [usage.reserved_bytes for usage in usages],
        },
        "statistics": meter.statistics(),
        "parameters": sum(parameter.numel() for parameter in prepared.model.parameters()),
        "attention": getattr(getattr(prepared.model, "config", None), "_attn_implementation", None),
        "torch_num_threads": torch.get_num_threads(),
    }
