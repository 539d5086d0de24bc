"""The C++ core: plain functions from columns to columns. Arrays are read-only views on core memory."""

from collections.abc import Callable

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
    memory_time_ns: NDArray[np.int64]
    memory_address: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    memory_device_type: NDArray[np.int8]
    memory_device_index: NDArray[np.int32]
    memory_thread: NDArray[np.int32]
    memory_total_allocated: NDArray[np.int64]
    memory_total_reserved: NDArray[np.int64]
    name_count: int
    counts: dict[str, int]
    diagnostics: list[_Problem]
    metadata: bytes
    bytes: int
    event_count: int
    def name(self, id: int) -> str: ...

class TraceReader:
    def __init__(self) -> None: ...
    def feed(self, bytes: bytes | bytearray | memoryview) -> None: ...
    def finish(self) -> Trace: ...
    @property
    def bytes_read(self) -> int: ...

def read_trace_file(path: str, progress: Callable[[int], None] | None = None) -> Trace: ...

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
) -> Attribution: ...
def operator_parents(trace: Trace) -> NDArray[np.int32]: ...
