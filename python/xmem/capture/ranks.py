"""Chooses the rank of a distributed job to trace: the one whose GPU needs the most memory decides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Ranks that differ by less are alike: a second run would tell nothing new, and the verdict counts the most
# anyway.
_ALIKE = 0.005


def rank_that_needs_most(notes: Mapping[str, Any]) -> int:
    """Return the rank on the fullest card, or the traced one if its card is about as full.

    Args:
        notes: The ``phantom`` object of a trace's metadata.
    """
    peaks = {card["card"]: int(card["peak_bytes"]) for card in notes["cards"]}
    needs = {
        int(rank["rank"]): max((peaks.get(row["card"], 0) for row in rank["devices"]), default=0)
        for rank in reversed(
            notes["ranks"]
        )  # the traced one, which comes first, wins over others of its number
    }
    traced = int(notes["ranks"][0]["rank"])
    busiest = max(needs, key=lambda rank: (needs[rank], -rank))
    return busiest if needs[busiest] > needs[traced] * (1 + _ALIKE) else traced


def allocated_peak_bytes(trace: Path) -> int:
    """Return the most that blocks on the GPU held at once, in a capture on the CPU as it is: enough to tell
    which of several ranks holds most."""
    import numpy as np

    from xmem.orchestration.lifetimes.host_blocks import DropHostMemory
    from xmem.run.recorded import Recorded
    from xmem.run.workload import workload_of
    from xmem.trace.attribution import attribute
    from xmem.trace.blocks import pair_blocks
    from xmem.trace.trace import read_trace

    read = read_trace(trace)
    blocks = pair_blocks(read)
    recorded = Recorded(read, blocks, attribute(read, blocks))
    workload = DropHostMemory()(workload_of(blocks, recorded.attribution, *recorded.traced_device), recorded)
    times = np.concatenate([workload.alloc_ns, workload.free_ns])
    changes = np.concatenate([workload.size_bytes, -workload.size_bytes])
    return int(np.cumsum(changes[np.argsort(times, kind="stable")]).max(initial=0))
