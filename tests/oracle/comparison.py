"""The simulator on the requests that the real allocator got, and the first difference between the two."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oracle.real_allocator import CONTEXT_BYTES, RealRun, Setting
from xmem.simulation import alloc_conf
from xmem.simulation.alloc_conf import AllocatorOptions
from xmem.simulation.replay import BlockState, Replay, RequestKind, Requests, replay

STATES = {"inactive": BlockState.FREE, "active_allocated": BlockState.ALLOCATED}
STATES["active_pending_free"] = BlockState.PENDING_FREE


@dataclass(frozen=True)
class Difference:
    """Where simulator and torch part.

    Attributes:
        request: Index of the first request after which they differ.
        text: What differs, of the simulator and of torch, for people.
    """

    request: int
    text: str


def options_of(setting: Setting, torch_version: str) -> AllocatorOptions:
    """The setting as the simulator takes it."""
    options = alloc_conf.parse(setting.alloc_conf, torch_version)
    if setting.memory_fraction is None:
        return options
    called = alloc_conf.parse(f"per_process_memory_fraction:{setting.memory_fraction}", "2.9")
    fraction = called.memory_fraction
    if setting.memory_fraction == 1 and alloc_conf.release_of(torch_version) >= (2, 10):
        fraction = None
    return replace(options, memory_fraction=fraction)


def first_difference(requests: Requests, setting: Setting, real: RealRun) -> Difference | None:
    """Counters and addresses after every request, segments and blocks where there are snapshots."""
    options = options_of(setting, real.torch_version)
    on_device = replace(requests, stream=real.stream_handle[requests.stream])
    simulated = replay(
        on_device,
        options=options,
        capacity_bytes=setting.capacity_bytes,
        other_bytes=CONTEXT_BYTES,
        on_oom="drop",
        every_counter=True,
    )
    found = [_first_counter(requests, simulated, real), _first_address(requests, simulated, real)]
    for request in sorted(real.snapshots):
        then = replay(
            on_device,
            options=options,
            capacity_bytes=setting.capacity_bytes,
            other_bytes=CONTEXT_BYTES,
            on_oom="drop",
            until=request,
        )
        found.append(_first_block(request, then, real))
    differences = [difference for difference in found if difference is not None]
    return min(differences, key=lambda d: d.request, default=None)


def _first_counter(requests: Requests, simulated: Replay, real: RealRun) -> Difference | None:
    names = list(simulated.statistics)
    ours = simulated.counters[:, [names.index(name) for name in real.names]]
    differs = ours != real.counters
    if not differs.any():
        return None
    request = int(np.flatnonzero(differs.any(axis=1))[0])
    rows = [
        f"  {real.names[c]}: simulated {ours[request, c]:,}, torch {real.counters[request, c]:,}"
        for c in np.flatnonzero(differs[request])
    ]
    return Difference(request, "\n".join([_describe(requests, request), *rows]))


def _first_address(requests: Requests, simulated: Replay, real: RealRun) -> Difference | None:
    base = _base(simulated, real)
    is_alloc = requests.kind == RequestKind.ALLOC
    blocks = requests.block[is_alloc]
    ours, theirs = simulated.placement.address[blocks], real.address[blocks]
    differs = (ours < 0) != (theirs < 0)
    differs |= (ours >= 0) & (theirs - ours != base)
    if not differs.any():
        return None
    at = int(np.flatnonzero(differs)[0])
    request = int(np.flatnonzero(is_alloc)[at])
    text = f"  address: simulated {ours[at]:#x}, torch {theirs[at] - base:#x} from the same first address"
    return Difference(request, f"{_describe(requests, request)}\n{text}")


def _first_block(request: int, simulated: Replay, real: RealRun) -> Difference | None:
    ours, theirs = _simulated_blocks(simulated), _real_blocks(real, request, _base(simulated, real))
    if ours == theirs:
        return None
    lines = [f"  simulated {row}" for row in ours if row not in theirs][:10]
    lines += [f"  torch     {row}" for row in theirs if row not in ours][:10]
    return Difference(request, f"segments and blocks after request {request}:\n" + "\n".join(lines))


Row = tuple[Any, ...]


def _simulated_blocks(simulated: Replay) -> list[Row]:
    state = simulated.state
    blocks: list[Row] = []
    for s in range(len(state.segment_address)):
        in_segment = np.flatnonzero(state.block_segment == s)
        segment = (
            int(state.segment_address[s]),
            int(state.segment_bytes[s]),
            int(state.segment_stream[s]),
            ("small", "large")[state.segment_pool[s]],
            bool(state.segment_expandable[s]),
            int(state.segment_mempool[s]),
        )
        blocks += [
            (
                *segment,
                int(state.block_address[b]),
                int(state.block_bytes[b]),
                int(state.block_requested_bytes[b]),
                BlockState(state.block_state[b]).name,
            )
            for b in in_segment
        ]
    return blocks


def _real_blocks(real: RealRun, request: int, base: int) -> list[Row]:
    blocks: list[Row] = []
    for address, size, stream, kind, expandable, mempool, inside in real.snapshots[request]:
        for block_address, block_size, requested, state in inside:
            is_free = STATES[state] == BlockState.FREE
            blocks.append(
                (
                    *(address - base, size, stream, kind, expandable, mempool),
                    *(block_address - base, block_size, 0 if is_free else requested, STATES[state].name),
                )
            )
    return blocks


def _base(simulated: Replay, real: RealRun) -> int:
    """How much higher torch's addresses are: where both put the first block."""
    both = np.flatnonzero((simulated.placement.address >= 0) & (real.address >= 0))
    return int(real.address[both[0]] - simulated.placement.address[both[0]]) if len(both) else 0


def _describe(requests: Requests, request: int) -> str:
    kind, block = RequestKind(requests.kind[request]), int(requests.block[request])
    about = ""
    if kind >= RequestKind.BEGIN_POOL:
        about = f" {block}"
    elif block >= 0:
        about = f" of block {block}, {requests.size_bytes[block]:,} bytes on stream {requests.stream[block]}"
    return f"after request {request}, {kind.name}{about}:"
