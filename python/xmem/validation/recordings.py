"""Recorded histories of real allocators, replayed through the simulator."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from xmem.errors import TraceError
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.alloc_conf import parse as parse_alloc_conf
from xmem.simulation.replay import AllocatorState
from xmem.snapshot.snapshot import RecordedDevice, RecordingReplay, replay_recording
from xmem.validation.measurements import Recorded

_DTYPES = {"UInt8": np.uint8, "Int32": np.int32, "Int64": np.int64}


def replay_history(measured: Recorded, options: AllocatorOptions | None = None) -> RecordingReplay:
    """Drive the simulator with a run's requests to PyTorch's allocator, and compare every event.

    Args:
        measured: A run with a complete history.
        options: Options of the allocator; by default those of the measured torch without settings.

    Raises:
        TraceError: The history is not complete.
        ConfigError: The run's torch is not modelled.
    """
    if not measured.history_is_complete:
        raise TraceError(f"{measured.where}: the history is not complete; measure this run again")
    if options is None:
        options = parse_alloc_conf("", measured.environment["torch"])
    empty = AllocatorState(
        **{field.name: np.empty(0, _DTYPES[str(field.type)]) for field in fields(AllocatorState)}
    )
    recorded = RecordedDevice(device=0, trace=measured.history(), state=empty, mempool_id=())
    return replay_recording(recorded, options, start=empty)
