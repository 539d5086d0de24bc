"""Types of the C++ core. Columns are read-only views that keep their owner alive."""

import numpy as np
from numpy.typing import NDArray

# Sequence, allocators, simulation (csrc/bindings/bind_simulation.cpp).

class AllocatorOptions:
    tie_break: int
    large_segment: int
    max_split: int
    max_non_split_rounding: int
    roundup_divisions: tuple[int, ...] | list[int]
    gc_threshold: float
    expandable: bool
    memory_fraction: float | None
    reject_over_limit: bool
    def __init__(self) -> None: ...

class RequestSequence:
    @property
    def kind(self) -> NDArray[np.uint8]: ...
    @property
    def block(self) -> NDArray[np.int32]: ...
    @property
    def time_ns(self) -> NDArray[np.int64]: ...

class AllocatorState:
    @property
    def segment_address(self) -> NDArray[np.int64]: ...
    @property
    def segment_size(self) -> NDArray[np.int64]: ...
    @property
    def segment_stream(self) -> NDArray[np.int64]: ...
    @property
    def segment_pool(self) -> NDArray[np.uint8]: ...
    @property
    def segment_expandable(self) -> NDArray[np.uint8]: ...
    @property
    def segment_id(self) -> NDArray[np.int32]: ...
    @property
    def block_segment(self) -> NDArray[np.int32]: ...
    @property
    def block_address(self) -> NDArray[np.int64]: ...
    @property
    def block_size(self) -> NDArray[np.int64]: ...
    @property
    def block_requested(self) -> NDArray[np.int64]: ...
    @property
    def block_state(self) -> NDArray[np.uint8]: ...

class Replay:
    @property
    def allocated_bytes(self) -> NDArray[np.int64]: ...
    @property
    def active_bytes(self) -> NDArray[np.int64]: ...
    @property
    def reserved_bytes(self) -> NDArray[np.int64]: ...
    @property
    def requested_bytes(self) -> NDArray[np.int64]: ...
    @property
    def placed_address(self) -> NDArray[np.int64]: ...
    @property
    def placed_segment(self) -> NDArray[np.int32]: ...
    @property
    def placed_size(self) -> NDArray[np.int64]: ...
    @property
    def event_action(self) -> NDArray[np.uint8]: ...
    @property
    def event_address(self) -> NDArray[np.int64]: ...
    @property
    def event_size(self) -> NDArray[np.int64]: ...
    @property
    def event_stream(self) -> NDArray[np.int64]: ...
    @property
    def event_request(self) -> NDArray[np.int64]: ...
    @property
    def block_request_block(self) -> NDArray[np.int32]: ...
    @property
    def state(self) -> AllocatorState: ...
    @property
    def statistics(self) -> dict[str, int]: ...
    @property
    def peaks(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]: ...
    @property
    def failures(self) -> list[tuple[int, int, int, int]]: ...

def make_request_sequence(
    alloc_ns: NDArray[np.int64],
    free_ns: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    empty_cache_ns: NDArray[np.int64],
) -> RequestSequence: ...
def replay(
    kind: NDArray[np.uint8],
    block: NDArray[np.int32],
    size_bytes: NDArray[np.int64],
    stream: NDArray[np.int64],
    options: AllocatorOptions,
    capacity_bytes: int | None,
    other_bytes: int,
    drop_failed: bool,
    until: int | None,
) -> Replay: ...

class RecordingReplay:
    @property
    def reserved_bytes(self) -> NDArray[np.int64]: ...
    @property
    def allocated_bytes(self) -> NDArray[np.int64]: ...
    @property
    def statistics(self) -> dict[str, int]: ...
    @property
    def state(self) -> AllocatorState: ...
    @property
    def difference(self) -> tuple[int, int, int, int, int] | None: ...

def make_allocator_state(
    segment_address: NDArray[np.int64],
    segment_size: NDArray[np.int64],
    segment_stream: NDArray[np.int64],
    segment_pool: NDArray[np.uint8],
    segment_expandable: NDArray[np.uint8],
    block_segment: NDArray[np.int32],
    block_address: NDArray[np.int64],
    block_size: NDArray[np.int64],
    block_requested: NDArray[np.int64],
    block_state: NDArray[np.uint8],
    /,
) -> AllocatorState: ...
def replay_recording(
    action: NDArray[np.uint8],
    address: NDArray[np.int64],
    size: NDArray[np.int64],
    stream: NDArray[np.int64],
    options: AllocatorOptions,
    start: AllocatorState,
    capacity_bytes: int,
) -> RecordingReplay: ...
def state_before(
    action: NDArray[np.uint8],
    address: NDArray[np.int64],
    size: NDArray[np.int64],
    stream: NDArray[np.int64],
    options: AllocatorOptions,
    end: AllocatorState,
) -> AllocatorState: ...
