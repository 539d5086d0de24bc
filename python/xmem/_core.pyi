"""The C++ core: functions from columns to columns, read-only views that keep their owner alive."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Problem = tuple[str, int, int, str, str]

class Trace:
    span_kind: NDArray[np.uint8]
    span_name: NDArray[np.int32]
    span_thread: NDArray[np.int32]
    span_begin_ns: NDArray[np.int64]
    span_end_ns: NDArray[np.int64]
    span_sequence_number: NDArray[np.int64]
    span_forward_thread: NDArray[np.int64]
    span_input_types: NDArray[np.int32]
    span_inputs: NDArray[np.int32]
    memory_time_ns: NDArray[np.int64]
    memory_address: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    memory_device_type: NDArray[np.int8]
    memory_device_index: NDArray[np.int32]
    memory_thread: NDArray[np.int32]
    memory_total_allocated: NDArray[np.int64]
    memory_total_reserved: NDArray[np.int64]
    name_count: int
    names: list[str]
    counts: dict[str, int]
    diagnostics: list[_Problem]
    process_of_thread: NDArray[np.int32]
    distributed: bytes
    metadata: bytes
    bytes: int
    event_count: int
    def name(self, id: int) -> str: ...

class TraceReader:
    def __init__(self, with_inputs: Sequence[str]) -> None: ...
    def feed(self, bytes: bytes | bytearray | memoryview) -> None: ...
    def finish(self) -> Trace: ...
    @property
    def bytes_read(self) -> int: ...

def read_trace_file(
    path: str | bytes,
    with_inputs: Sequence[str],
    progress: Callable[[int], None] | None = None,
    threads: int = 1,
) -> Trace: ...
def align(
    left: NDArray[np.int64], right: NDArray[np.int64], max_differences: int = 4000
) -> NDArray[np.int32]: ...

class PairedBlocks:
    address: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    alloc_ns: NDArray[np.int64]
    free_ns: NDArray[np.int64]
    device_type: NDArray[np.int8]
    device_index: NDArray[np.int32]
    thread: NDArray[np.int32]
    alloc_event: NDArray[np.int32]
    free_event: NDArray[np.int32]
    flags: NDArray[np.uint8]
    diagnostics: list[_Problem]

def pair_blocks(trace: Trace) -> PairedBlocks: ...

_Lifetimes = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

def blocks_changed(before: _Lifetimes, after: _Lifetimes) -> int: ...

class Attribution:
    operator: NDArray[np.int32]
    root_operator: NDArray[np.int32]
    forward_link: NDArray[np.int32]
    phase: NDArray[np.uint8]
    free_phase: NDArray[np.uint8]
    iteration: NDArray[np.int32]
    free_iteration: NDArray[np.int32]
    module: NDArray[np.int32]
    source_line: NDArray[np.int32]
    host: NDArray[np.uint8]
    category: NDArray[np.uint8]
    tensor: NDArray[np.int32]
    modules: list[str]
    lines: list[str]
    optimizer_steps: int

def attribute(
    trace: Trace,
    blocks: PairedBlocks,
    tensor_category: NDArray[np.uint8],
    tensor_address: NDArray[np.int64],
    tensor_time_ns: NDArray[np.int64],
    tensors_on_gpu: bool,
) -> Attribution: ...
def rows_by_name(trace: Trace, kind: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...
def operator_parents(trace: Trace) -> NDArray[np.int32]: ...
def nearest_wanted(
    parents: NDArray[np.int32], wanted: NDArray[np.bool_], rows: NDArray[np.int32]
) -> NDArray[np.int32]: ...

# Sequence, allocators, simulation (csrc/bindings/bind_simulation.cpp).

class AllocatorOptions:
    def __init__(self, **settings: Any) -> None: ...

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
    def segment_mempool(self) -> NDArray[np.int32]: ...
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
    def counters(self) -> NDArray[np.int64]: ...
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
    def event_mempool(self) -> NDArray[np.int32]: ...
    @property
    def event_request(self) -> NDArray[np.int64]: ...
    @property
    def segment_mempool(self) -> NDArray[np.int32]: ...
    @property
    def block_request_block(self) -> NDArray[np.int32]: ...
    @property
    def state(self) -> AllocatorState: ...
    @property
    def statistics(self) -> dict[str, int]: ...
    @property
    def reserved_by_private_pools(self) -> dict[int, dict[str, int]]: ...
    @property
    def peaks(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]: ...
    @property
    def failures(self) -> list[tuple[int, int, int, int]]: ...

def make_request_sequence(
    alloc_ns: NDArray[np.int64],
    free_ns: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    waits: NDArray[np.uint8],
    calls: tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int32]],
) -> RequestSequence: ...
def replay(
    kind: NDArray[np.uint8],
    block: NDArray[np.int32],
    size_bytes: NDArray[np.int64],
    stream: NDArray[np.int64],
    alternatives: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]],
    pools: tuple[NDArray[np.int32], NDArray[np.int32]],
    options: AllocatorOptions,
    capacity_bytes: int | None,
    other_bytes: int,
    descending_addresses: bool,
    drop_failed: bool,
    until: int | None,
    every_counter: bool,
) -> Replay: ...
def counter_names() -> list[str]: ...

class GaugeReplay:
    @property
    def allocated_bytes(self) -> NDArray[np.int64]: ...
    @property
    def active_bytes(self) -> NDArray[np.int64]: ...
    @property
    def reserved_bytes(self) -> NDArray[np.int64]: ...
    @property
    def requested_bytes(self) -> NDArray[np.int64]: ...
    @property
    def peaks(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]: ...
    @property
    def out_of_memory(self) -> int | None: ...

def replay_gauges(
    kind: NDArray[np.uint8],
    block: NDArray[np.int32],
    size_bytes: NDArray[np.int64],
    stream: NDArray[np.int64],
    alternatives: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]],
    pools: tuple[NDArray[np.int32], NDArray[np.int32]],
    allocator: int,
    options: AllocatorOptions,
    capacity_bytes: int | None,
    other_bytes: int,
    keep_timeline: bool,
) -> GaugeReplay: ...

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
    segment_mempool: NDArray[np.int32],
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
    mempool: NDArray[np.int32],
    options: AllocatorOptions,
    start: AllocatorState,
    capacity_bytes: int,
) -> RecordingReplay: ...
def state_before(
    action: NDArray[np.uint8],
    address: NDArray[np.int64],
    size: NDArray[np.int64],
    stream: NDArray[np.int64],
    mempool: NDArray[np.int32],
    options: AllocatorOptions,
    end: AllocatorState,
) -> AllocatorState: ...

# Snapshots (csrc/bindings/bind_snapshot.cpp).

def check_plain_pickle(content: bytes) -> None: ...

# Memory of NCCL (csrc/bindings/bind_nccl.cpp).

def nccl_bytes(
    capability: int,
    name: str,
    settings: tuple[int, int, int],
    ranks: int,
    here: int,
    ring: bool,
    tree: bool,
    near_peers: int,
    far_peers: bool,
) -> int: ...
