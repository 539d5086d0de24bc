"""CUDA memory snapshots of real runs: read without trusting them, and replay them against the simulator.

``torch.cuda.memory._dump_snapshot`` pickles plain lists, dicts, strings and numbers. An unpickler that
refuses every import reads them all, and runs nothing that a hostile file may contain.
"""

from __future__ import annotations

import io
import os
import pickle
import reprlib
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.errors import TraceError
from xmem.records import dataclass
from xmem.simulation.alloc_conf import DEFAULT_TORCH_VERSION, AllocatorOptions
from xmem.simulation.alloc_conf import parse as parse_alloc_conf
from xmem.simulation.replay import AllocatorState, BlockState, allocator_state, core_options

__all__ = [
    "Event",
    "MemoryTrace",
    "RecordedAction",
    "RecordedDevice",
    "RecordingDifference",
    "RecordingReplay",
    "Snapshot",
    "read_snapshot",
    "replay_recording",
    "state_before",
]

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]


class RecordedAction(IntEnum):
    """Actions of PyTorch's memory trace; `OTHER` stands for those unrelated to memory."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    OTHER = 8


_ACTIONS = {action.name.lower(): int(action) for action in RecordedAction if action.name != "OTHER"}
_STATES = {
    "inactive": BlockState.FREE,
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.PENDING_FREE,
    "active_awaiting_free": BlockState.PENDING_FREE,
}
_POOLS = {"small": 0, "large": 1}

# Address space of a device of unknown memory; only the length of expandable ranges depends on it.
_UNKNOWN_CAPACITY = 1 << 40


@dataclass(frozen=True)
class MemoryTrace:
    """The actions of the allocator of one device, in order.

    Attributes:
        action: uint8, `RecordedAction`.
        address: int64; for an OOM the free bytes of the device.
        size_bytes: int64: requested for blocks, whole for segments, rounded for an OOM.
        stream: int64.
        mempool: int32, 0 for the default pool, else one more than the index into `RecordedDevice.mempool_id`.
        time_us: int64, -1 where the file has no times.
    """

    action: UInt8
    address: Int64
    size_bytes: Int64
    stream: Int64
    mempool: Int32
    time_us: Int64

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class RecordedDevice:
    """One device of a snapshot.

    Attributes:
        device: Index of the device.
        trace: Its events; empty when recording was off.
        state: Its segments and blocks when the snapshot was taken.
        mempool_id: PyTorch's ids of the private pools that took part, of CUDA graphs and ``MemPool``s, in
            order of appearance.
    """

    device: int
    trace: MemoryTrace
    state: AllocatorState
    mempool_id: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Snapshot:
    """A file of ``torch.cuda.memory._dump_snapshot``.

    Attributes:
        path: The file.
        devices: Devices that have events or segments, by index.
        alloc_conf: ``PYTORCH_CUDA_ALLOC_CONF`` of the run, None in files that do not have it.
    """

    path: str
    devices: Mapping[int, RecordedDevice]
    alloc_conf: str | None

    def allocator_options(self, torch_version: str = DEFAULT_TORCH_VERSION) -> AllocatorOptions:
        """Return the settings of the recorded run, as a release of PyTorch reads them; files do not name
        their release.

        Raises:
            ConfigError: The run used settings that are not modelled.
        """
        if self.alloc_conf is not None:
            return parse_alloc_conf(self.alloc_conf, torch_version)
        expandable = any(device.state.segment_expandable.any() for device in self.devices.values())
        return parse_alloc_conf(f"expandable_segments:{expandable}", torch_version)


@dataclass(frozen=True)
class Event:
    """One row of a memory trace; see `MemoryTrace`."""

    action: RecordedAction
    address: int
    size_bytes: int
    stream: int


@dataclass(frozen=True)
class RecordingDifference:
    """The first event at which simulator and recording diverge.

    Attributes:
        event: Index of the event in the trace.
        recorded: What was recorded, None at the end of the trace.
        simulated: What the simulator did instead, None when it did nothing.
    """

    event: int
    recorded: Event | None
    simulated: Event | None


@dataclass(frozen=True)
class RecordingReplay:
    """The extent to which a recording and the simulator agree.

    Attributes:
        difference: None when every event agreed.
        reserved_bytes: int64, after each event that agreed.
        allocated_bytes: int64, likewise.
        statistics: Counters under the keys of ``torch.cuda.memory_stats()``, from the first event on.
        state: Segments and blocks of the simulator at the end.
    """

    difference: RecordingDifference | None
    reserved_bytes: Int64
    allocated_bytes: Int64
    statistics: Mapping[str, int]
    state: AllocatorState


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Read a CUDA memory snapshot.

    Raises:
        TraceError: The file cannot be read, is not such a snapshot, is cut short, or asks to import anything.
    """
    name = os.fspath(path)
    try:
        if not stat.S_ISREG(Path(name).stat().st_mode):
            raise TraceError("it is no regular file; copy the snapshot into one, and pass that", name)
        pickled = Path(name).read_bytes()
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}; check the path", name) from None
    return _Schema(name).snapshot(_unpickle(name, pickled))


def state_before(recorded: RecordedDevice, options: AllocatorOptions) -> AllocatorState:
    """Work out the allocator before the first event of a trace, backwards from the segments after it.

    Where the trace does not tell, a large block may come out up to 1 MiB short.

    Raises:
        TraceError: Trace and segments do not belong together; names the event.
    """
    before = _core.state_before(*_columns(recorded), core_options(options), _core_state(recorded.state))
    return allocator_state(before, np.full(len(before.block_address), -1, np.int32))


def replay_recording(
    recorded: RecordedDevice,
    options: AllocatorOptions,
    *,
    start: AllocatorState | None = None,
    capacity_bytes: int = _UNKNOWN_CAPACITY,
) -> RecordingReplay:
    """Drive the simulator with the requests of a recording and compare everything it does, event by event.

    Args:
        recorded: One device of a snapshot.
        options: Settings from `Snapshot.allocator_options`.
        start: The allocator before the first event; worked out by `state_before` when left out.
        capacity_bytes: Memory of the device; the address ranges of expandable segments are measured by it.

    Raises:
        ConfigError: Settings that PyTorch refuses.
        TraceError: Trace and segments do not belong together.
    """
    if start is None:
        start = state_before(recorded, options)
    done = _core.replay_recording(
        *_columns(recorded), core_options(options), _core_state(start), capacity_bytes
    )
    return RecordingReplay(
        difference=None if done.difference is None else _difference(recorded.trace, *done.difference),
        reserved_bytes=done.reserved_bytes,
        allocated_bytes=done.allocated_bytes,
        statistics=done.statistics,
        state=allocator_state(done.state, np.full(len(done.state.block_address), -1, np.int32)),
    )


def _columns(recorded: RecordedDevice) -> tuple[UInt8, Int64, Int64, Int64, Int32]:
    trace = recorded.trace
    return trace.action, trace.address, trace.size_bytes, trace.stream, trace.mempool


def _core_state(state: AllocatorState) -> _core.AllocatorState:
    return _core.make_allocator_state(
        state.segment_address,
        state.segment_bytes,
        state.segment_stream,
        state.segment_pool,
        state.segment_expandable,
        state.segment_mempool,
        state.block_segment,
        state.block_address,
        state.block_bytes,
        state.block_requested_bytes,
        state.block_state,
    )


def _difference(
    trace: MemoryTrace, event: int, action: int, address: int, size: int, stream: int
) -> RecordingDifference:
    recorded = None
    if event < len(trace):
        recorded = Event(
            RecordedAction(trace.action[event]),
            int(trace.address[event]),
            int(trace.size_bytes[event]),
            int(trace.stream[event]),
        )
    did_something = action != RecordedAction.OTHER
    simulated = Event(RecordedAction(action), address, size, stream) if did_something else None
    return RecordingDifference(event, recorded, simulated)


_GZIP = b"\x1f\x8b"
_BEGINNING = 64  # profilers of 2022 and 2023 begin with an empty line


class _PlainData(pickle.Unpickler):
    """Builds lists, dicts, strings and numbers; a second barrier behind the check of the core."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"import of {module}.{name}")


def _unpickle(path: str, content: bytes) -> object:
    if content[:_BEGINNING].lstrip().startswith((_GZIP, b"{", b"[")):
        message = (
            "this is not a snapshot of the allocator; if it is a profiler's trace, use xmem-fast estimate"
        )
        raise TraceError(message, path, 0)
    try:
        _core.check_plain_pickle(content)
    except TraceError as error:
        raise TraceError(error.message, path, error.byte_offset) from None
    stream = io.BytesIO(content)
    try:
        return _PlainData(stream).load()
    # A broken pickle can make the unpickler fail in any way.
    except Exception as error:
        raise TraceError(
            f"not a pickle of torch.cuda.memory._dump_snapshot ({type(error).__name__}: {error}); "
            "pass a file that it wrote",
            path,
            stream.tell(),
        ) from None


@dataclass(frozen=True)
class _Schema:
    """The layout of a snapshot; every deviation from it is a TraceError that says where."""

    path: str

    def snapshot(self, content: object) -> Snapshot:
        if not isinstance(content, dict):
            self._refuse(f"a snapshot is a dict; this file holds a {type(content).__name__}")
        traces = self._list(content, "device_traces")
        segments = self._list(content, "segments")
        devices = {device for device, trace in enumerate(traces) if trace}
        by_device: dict[int, list[dict[str, Any]]] = {}
        for index, segment in enumerate(segments):
            device = self._number(segment, "device", f"segments[{index}]")
            by_device.setdefault(device, []).append(segment)
        settings = content.get("allocator_settings")
        conf = settings.get("PYTORCH_CUDA_ALLOC_CONF") if isinstance(settings, dict) else None
        return Snapshot(
            path=self.path,
            devices={
                device: self._device(
                    device, traces[device] if 0 <= device < len(traces) else [], by_device.get(device, [])
                )
                for device in sorted(devices | by_device.keys())
            },
            alloc_conf=conf if isinstance(conf, str) else None,
        )

    def _device(self, device: int, trace: Any, segments: Sequence[dict[str, Any]]) -> RecordedDevice:
        if not isinstance(trace, list):
            self._refuse(f"device_traces[{device}] is a {type(trace).__name__}, not a list of entries")
        mempools = _Mempools()
        state = self._state(device, segments, mempools)
        return RecordedDevice(
            device, self._trace(device, trace, state, mempools), state, tuple(mempools.number)[1:]
        )

    def _trace(
        self, device: int, entries: list[Any], state: AllocatorState, mempools: _Mempools
    ) -> MemoryTrace:
        def column(name: str, dtype: type[np.generic], of: Callable[[Any], int]) -> NDArray[Any]:
            return self._column(entries, dtype, of, f"device_traces[{device}]", name)

        named = any(isinstance(entry, dict) and "pool_id" in entry for entry in entries)
        if named or not state.segment_mempool.any():
            mempool = column("pool_id", np.int32, lambda e: mempools.of(e.get("pool_id", (0, 0))))
        else:
            mempool = None
        trace = MemoryTrace(
            action=column("action", np.uint8, lambda e: _ACTIONS.get(e["action"], RecordedAction.OTHER)),
            address=column(
                "addr", np.int64, lambda e: e["device_free"] if e["action"] == "oom" else e["addr"]
            ),
            size_bytes=column("size", np.int64, lambda e: e["size"]),
            stream=column("stream", np.int64, lambda e: e["stream"]),
            mempool=np.zeros(len(entries), np.int32) if mempool is None else mempool,
            time_us=column("time_us", np.int64, lambda e: e.get("time_us", -1)),
        )
        return trace if mempool is not None else replace(trace, mempool=_mempools_by_address(trace, state))

    def _state(self, device: int, segments: Sequence[dict[str, Any]], mempools: _Mempools) -> AllocatorState:
        segments = sorted(segments, key=lambda s: self._number(s, "address", f"segments of device {device}"))
        blocks = list(self._blocks(device, segments))

        def of_segments(name: str, dtype: type[np.generic], of: Callable[[Any], int]) -> NDArray[Any]:
            return self._column(segments, dtype, of, f"segments of device {device}", name)

        def of_blocks(name: str, dtype: type[np.generic], of: Callable[[Any], int]) -> NDArray[Any]:
            return self._column(blocks, dtype, of, f"blocks of device {device}", name)

        return AllocatorState(
            segment_address=of_segments("address", np.int64, lambda s: s["address"]),
            segment_bytes=of_segments("total_size", np.int64, lambda s: s["total_size"]),
            segment_stream=of_segments("stream", np.int64, lambda s: s["stream"]),
            segment_pool=of_segments("segment_type", np.uint8, lambda s: _POOLS[s["segment_type"]]),
            segment_expandable=of_segments(
                "is_expandable", np.uint8, lambda s: bool(s.get("is_expandable", False))
            ),
            segment_mempool=of_segments(
                "segment_pool_id", np.int32, lambda s: mempools.of(s.get("segment_pool_id", (0, 0)))
            ),
            segment_id=np.arange(len(segments), dtype=np.int32),
            block_segment=of_blocks("segment", np.int32, lambda b: b[0]),
            block_address=of_blocks("address", np.int64, lambda b: b[1]),
            block_bytes=of_blocks("size", np.int64, lambda b: b[2]["size"]),
            # PyTorch leaves the size of an earlier use in a free block.
            block_requested_bytes=of_blocks("requested_size", np.int64, lambda b: _requested(b[2])),
            block_state=of_blocks("state", np.uint8, lambda b: _STATES[b[2]["state"]]),
            block=np.full(len(blocks), -1, np.int32),
        )

    def _blocks(
        self, device: int, segments: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield segment index, address and entry of each block; old files leave the address out."""
        for index, segment in enumerate(segments):
            where = f"number {index} by address of the segments of device {device}"
            address = self._number(segment, "address", where)
            for block in self._list(segment, "blocks", where):
                yield index, address, block
                address += self._number(block, "size", f"a block of {where}")

    def _column(
        self,
        entries: Sequence[Any],
        dtype: type[np.generic],
        of: Callable[[Any], int],
        where: str,
        name: str,
    ) -> NDArray[Any]:
        try:
            column = np.fromiter((of(entry) for entry in entries), dtype, len(entries))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            index = next(i for i, entry in enumerate(entries) if not _reads(of, entry, dtype))
            raise TraceError(
                f"entry {index} of {where} has no usable {name!r}: {_short(entries[index])}; "
                "take the snapshot again, this layout is not PyTorch's",
                self.path,
                event_index=index,
            ) from None
        column.flags.writeable = False
        return column

    def _list(self, of: Any, key: str, where: str = "the snapshot") -> list[Any]:
        value = of.get(key) if isinstance(of, dict) else None
        if not isinstance(value, list):
            self._refuse(f"{where} has no list {key!r}")
        return value

    def _number(self, of: Any, key: str, where: str) -> int:
        value = of.get(key) if isinstance(of, dict) else None
        if not isinstance(value, int):
            self._refuse(f"{where} has no number {key!r}")
        return value

    def _refuse(self, what: str) -> NoReturn:
        raise TraceError(f"{what}; pass a file that torch.cuda.memory._dump_snapshot wrote", self.path)


class _Mempools:
    """Numbers for PyTorch's ids of private pools, from 1 in order of appearance; 0 is the default pool."""

    def __init__(self) -> None:
        self.number: dict[tuple[int, int], int] = {(0, 0): 0}

    def of(self, mempool_id: Sequence[int]) -> int:
        first, second = mempool_id
        return self.number.setdefault((int(first), int(second)), len(self.number))


def _mempools_by_address(trace: MemoryTrace, state: AllocatorState) -> Int32:
    """Return the private pool of each event of a trace that does not name it (torch before 2.9).

    Events in segments that the trace ends with belong to their pools, back to when the segments were made;
    the pools of segments that were given back before are not known.
    """
    mempool = np.zeros(len(trace), np.int32)
    made = (RecordedAction.SEGMENT_ALLOC, RecordedAction.SEGMENT_MAP)
    for row in np.flatnonzero(state.segment_mempool):
        begin = state.segment_address[row]
        inside = (trace.address >= begin) & (trace.address < begin + state.segment_bytes[row])
        inside &= trace.action != RecordedAction.OOM
        first = np.flatnonzero(inside & np.isin(trace.action, made))
        if len(first) and not state.segment_expandable[row]:
            inside[: first[-1]] = False
        mempool[inside] = state.segment_mempool[row]
    mempool.flags.writeable = False
    return mempool


def _requested(block: Mapping[str, Any]) -> int:
    if block.get("state") == "inactive":
        return 0
    requested: int = block.get("requested_size", block["size"])
    return requested


def _reads(of: Callable[[Any], int], entry: Any, dtype: type[np.generic]) -> bool:
    try:
        np.fromiter((of(entry),), dtype, 1)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return False
    return True


def _short(entry: object) -> str:
    text = reprlib.repr(entry)
    return text if len(text) <= 120 else f"{text[:117]}..."
