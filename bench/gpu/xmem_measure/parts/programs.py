"""Part 6: what short programs need that each use one thing of PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from workloads.programs import PROGRAMS
from xmem_measure.meter import is_out_of_memory
from xmem_measure.session import Session

_SEED = 0


def run(config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Run a program with the allocator recorded."""
    program = PROGRAMS[config["program"]]
    session.start()
    meter = session.meter
    meter.start_history()
    torch.manual_seed(_SEED)
    result: dict[str, Any] = {"outcome": "done"}
    try:
        program(meter.device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        result = {"outcome": "out_of_memory", "error": str(error)[:2000]}
    usage = meter.usage()
    return result | {
        "peak_allocated_bytes": usage.max_allocated_bytes,
        "peak_reserved_bytes": usage.max_reserved_bytes,
        "allocated_bytes": usage.allocated_bytes,
        "reserved_bytes": usage.reserved_bytes,
        "statistics": meter.statistics(),
        "history": meter.history().to_json(),
    }
