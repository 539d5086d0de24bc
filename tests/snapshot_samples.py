"""A memory snapshot written by hand: a large segment, two blocks, one of them freed."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

MIB = 1 << 20
BASE = 1 << 30


def entry(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 7, "frames": []}


def snapshot(segment_bytes: int = 20 * MIB) -> dict[str, Any]:
    """What torch.cuda.memory._dump_snapshot would pickle; PyTorch's segment is 20 MiB."""
    kept, freed = 3 * MIB, 4 * MIB
    return copy.deepcopy(
        {
            "segments": [
                {
                    "device": 0,
                    "address": BASE,
                    "total_size": segment_bytes,
                    "stream": 0,
                    "segment_type": "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "blocks": [
                        {"address": BASE, "size": kept, "requested_size": kept, "state": "active_allocated"},
                        {
                            "address": BASE + kept,
                            "size": segment_bytes - kept,
                            "requested_size": 0,
                            "state": "inactive",
                        },
                    ],
                }
            ],
            "device_traces": [
                [
                    entry("segment_alloc", BASE, segment_bytes),
                    entry("alloc", BASE, kept),
                    entry("alloc", BASE + kept, freed),
                    entry("free_requested", BASE + kept, freed),
                    entry("free_completed", BASE + kept, freed),
                ]
            ],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
        }
    )


def write(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content))
    return path
