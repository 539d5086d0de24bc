"""One run, in a process that ends with it."""

from __future__ import annotations

import traceback
from typing import Any

from workloads import Scale
from xmem_measure.fake_meter import FakeMeter
from xmem_measure.meter import CudaMeter, is_out_of_memory
from xmem_measure.parts import (
    convolutions,
    device,
    least_memory,
    libraries,
    occupancy,
    operators,
    programs,
    samples,
    training,
)
from xmem_measure.session import Session
from xmem_measure.wire import Wire

_DRY_RUN = Scale(divisor=50)
_RUNS = {
    "probe": device.probe,
    "device": device.run,
    "training": training.run,
    "least_memory": least_memory.run,
    "operators": operators.run,
    "convolutions": convolutions.run,
    "occupancy": occupancy.run,
    "programs": programs.run,
    "samples": samples.run,
    "libraries": libraries.run,
}


def run(spec: dict[str, Any], wire: Wire, *, dry_run: bool) -> None:
    """Do what was asked for and send ``result`` or ``error``."""
    session = Session(
        wire=wire,
        meter=FakeMeter() if dry_run else CudaMeter(),
        scale=_DRY_RUN if dry_run else Scale(),
    )
    try:
        result = _RUNS[spec["part"]](spec["config"], session)
    # Whatever goes wrong costs this run alone, and is written down.
    except BaseException as error:
        message = f"{type(error).__name__}: {error}".strip()
        traceback.print_exc()
        outcome = "out_of_memory" if is_out_of_memory(error) else "failed"
        wire.send(outcome=outcome, error=message[:2000])
    else:
        wire.send(**{"outcome": "done", **result})
