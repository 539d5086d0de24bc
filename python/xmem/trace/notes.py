"""What our capture noted about a run besides its events: the ``xmem`` object of a trace, parsed once.

The format is in ``docs/trace_model.md``, section 7. Entries that an earlier version did not write have
defaults, those of a later one are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Literal

from xmem.files.decoding import decode
from xmem.records import dataclass

FORMAT = 1


class Mode(StrEnum):
    """What the script ran on while it was recorded."""

    CPU = "real"
    FAKE = "fake"
    PHANTOM = "phantom"
    GPU = "gpu"


@dataclass(frozen=True)
class NamedTensors:
    """Tensors of the script with names, one row each; earlier captures lack the last three columns.

    Attributes:
        role: Role, such as ``parameter``.
        name: Name, such as ``GPT.wte.weight``.
        address: Address of its memory.
        size_bytes: Size of its storage.
        time_ns: When it was seen there, on the clock of the trace.
        dtype: Dtype, such as ``float32``.
        shape: Shape of the tensor.
        group: Parameter group of the optimizer, -1 for none.
    """

    role: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    address: list[int] = field(default_factory=list)
    size_bytes: list[int] = field(default_factory=list)
    time_ns: list[int] = field(default_factory=list)
    dtype: list[str] = field(default_factory=list)
    shape: list[Any] | None = None
    group: list[int] | None = None


@dataclass(frozen=True)
class OptimizerNote:
    """An optimizer of the script.

    Attributes:
        name: Name of its class.
        foreach: Whether it works on lists of tensors.
        fused: Whether a kernel does the whole step.
        steps: Number of steps that were seen.
        parameters: Number of its parameters.
    """

    name: str
    foreach: bool | None = None
    fused: bool | None = None
    steps: int = 0
    parameters: int = 0


@dataclass(frozen=True)
class DevicePeaks:
    """Peaks that PyTorch's allocator counted on a device of a process.

    Attributes:
        device: Number of the device in the process.
        peak_reserved_bytes: The most that it reserved.
        peak_allocated_bytes: The most that was in blocks in use.
        card: The GPU behind it; None in recordings and early captures.
    """

    device: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int = 0
    card: int | None = None


@dataclass(frozen=True)
class PlaceNote:
    """Where a rank is in one of its groups.

    Attributes:
        name: What the script calls the group, such as ``pp`` or ``tp``.
        index: Of the rank in it.
        size: Number of its ranks.
    """

    name: str
    index: int
    size: int


@dataclass(frozen=True)
class RankNote:
    """A process of the job.

    Attributes:
        rank: Rank in its process group.
        devices: Devices that it used.
        place: Its place in the groups that have a name, where only some ranks ran.
    """

    rank: int = 0
    devices: tuple[DevicePeaks, ...] = ()
    place: tuple[PlaceNote, ...] = ()


@dataclass(frozen=True)
class CardNote:
    """What a phantom card held when it was fullest.

    Attributes:
        card: Number of the card.
        peak_bytes: Total bytes.
        contexts: Number of processes with a context.
        context_bytes: Memory of these contexts.
        nccl_bytes: Memory of NCCL's buffers.
        library_bytes: Memory that other libraries allocated.
        managed_bytes: Managed memory, which is not in ``peak_bytes``.
        managed_largest_bytes: The largest piece of it.
    """

    card: int
    peak_bytes: int
    contexts: int = 1
    context_bytes: int = 0
    nccl_bytes: int = 0
    library_bytes: int = 0
    managed_bytes: int = 0
    managed_largest_bytes: int = 0


@dataclass(frozen=True)
class ValueRead:
    """A line of the script that read a value that the phantom GPU does not have.

    Attributes:
        kind: ``sizes`` or ``decisions``.
        line: The line, ``FILE:LINE``; None in a library.
    """

    kind: str
    line: str | None = None


@dataclass(frozen=True)
class AllocatorNotes:
    """What PyTorch's own allocator reported about a run on a phantom or real GPU.

    Attributes:
        alloc_conf: Settings of the allocator.
        ranks: Processes of the job, the traced one first.
        cards: Cards of the phantom.
    """

    alloc_conf: str = ""
    ranks: tuple[RankNote, ...] = ()
    cards: tuple[CardNote, ...] = ()

    @property
    def busiest(self) -> DevicePeaks | None:
        """The device on which the traced process reserved most; None if unknown."""
        devices = self.ranks[0].devices if self.ranks else ()
        return max(devices, key=lambda row: row.peak_reserved_bytes, default=None)


@dataclass(frozen=True)
class DeviceRequests:
    """The requests of a device, from the allocator's own history (``run.allocator_history``)."""

    device: int
    address: list[int]
    size_bytes: list[int]
    order: list[int]
    stream: list[int]
    mempool: list[int]
    waits: list[int]
    restored: list[Any]
    marks: list[Any]


@dataclass(frozen=True)
class UnorderedRequests:
    """The notes of captures before 2026-12 instead: sizes and streams, in the order of the trace."""

    size_bytes: list[int]
    stream: list[int]


@dataclass(frozen=True)
class PhantomNotes(AllocatorNotes):
    """The same for a phantom GPU, with everything else that its run noted.

    Attributes:
        requests: Requests of each device that the traced process used.
        unordered_requests: Requests of an early capture.
        emptied_after: Number of requests so far at each time the script emptied the cache, in early captures.
        cudnn: Facts about the cuDNN that planned convolutions, such as ``planned_by``.
        values: Lines that read values of the GPU.
        behind: Whether the GPU was behind the script.
        unwaited_bytes: What the tensors of asynchronous collectives took, in all, that the script did not
            wait for, in a release that then keeps them.
    """

    requests: tuple[DeviceRequests, ...] = ()
    unordered_requests: UnorderedRequests | None = None
    emptied_after: list[int] = field(default_factory=list)
    cudnn: Mapping[str, str] = field(default_factory=dict)
    values: tuple[ValueRead, ...] = ()
    behind: bool = False
    unwaited_bytes: int = 0


@dataclass(frozen=True)
class StreamNotes:
    """On which CUDA streams a run on the CPU worked.

    Attributes:
        time_ns: When the recorded thread went to another stream, on the clock of the trace.
        stream: That stream, 0 for the default stream.
        used_address: Address of memory that a stream was told to use (``record_stream``).
        used_ns: When it was told.
        used_on: The stream.
    """

    time_ns: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    used_address: list[int] = field(default_factory=list)
    used_ns: list[int] = field(default_factory=list)
    used_on: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class AttentionNotes:
    """Calls of attention for which the script left CUDA another choice of kernels than the default.

    Attributes:
        time_ns: A time within the call, on the clock of the trace.
        kernels: The kernels that are allowed, by priority, with commas between.
        in_order: 1 where that priority counts, rather than CUDA's own; else 0.
    """

    time_ns: list[int] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    in_order: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class CommunicatorNote:
    """A communicator of NCCL, and what it connected on a phantom GPU, or would have connected on one.

    Attributes:
        ranks: Number of its ranks.
        here: Number of those on the server of this one.
        ring: Whether there were collectives.
        tree: Whether there were reductions for all.
        near_peers: Number of ranks on the same server that this one sent to or received from.
        far_peers: Whether there were others.
        taken_bytes: What it took on the phantom GPU; 0 on the CPU.
    """

    ranks: int
    here: int
    ring: bool = False
    tree: bool = False
    near_peers: int = 0
    far_peers: bool = False
    taken_bytes: int = 0


@dataclass(frozen=True)
class NcclNotes:
    """What NCCL connected, or would have connected for a run on the CPU.

    Attributes:
        settings: NCCL_BUFFSIZE, NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS of its environment, 0 if not set.
        communicators: Those of the traced rank.
    """

    settings: list[int] = field(default_factory=lambda: [0, 0, 0])
    communicators: tuple[CommunicatorNote, ...] = ()


@dataclass(frozen=True)
class LaunchNotes:
    """What was launched on a phantom GPU, in order.

    Attributes:
        table: Distinct launches, as ``csrc/phantom/runtime/launch_log.cpp`` writes them.
        what: Row of the table.
        thread: Native id of the thread.
        stream: Streams, numbered as they came.
        time_ns: On the clock of the trace.
        dropped: Number of later launches that were not written down.
        gpu: Name of the GPU as CUDA gives it.
        compute_capability: Major and minor of the GPU whose code was read.
        multiprocessors: Of the GPU.
    """

    table: list[Any] = field(default_factory=list)
    what: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    time_ns: list[int] = field(default_factory=list)
    dropped: int = 0
    gpu: str = ""
    compute_capability: tuple[int, ...] = ()
    multiprocessors: int = -1


Doubt = Literal["graphs_of_gradients", "transforms"]


@dataclass(frozen=True)
class CaptureNotes:
    """What a capture noted about its run.

    Attributes:
        mode: What the script ran on.
        versions: Versions of ``xmem``, ``torch`` and ``python``.
        argv: The command.
        iterations: Number of iterations that were recorded.
        device_requests: How often the script asked for a GPU; 0 means that all its tensors are taken as
            device memory.
        settings: PyTorch settings of the script (``run.target.RunSettings``).
        assumptions: Assumptions, in words.
        lines: ``function`` and ``text`` of source lines (``PATH:LINE``).
        tensors: Named tensors.
        optimizers: Optimizers of the script.
        script_ended: Whether it was recorded to its end.
        values: Reads of values that were not known, of a run on the CPU that computed nothing.
        streams: The CUDA streams of a run on the CPU.
        attention: Calls of attention that may not take every kernel.
        doubts: What a run on the CPU did that cannot be followed exactly there.
        nccl: What NCCL connected for it, or would have connected on a GPU.
        phantom: Notes of a run on a phantom GPU.
        measured: Notes of PyTorch's allocator on a real GPU.
        launches: What was launched on the phantom GPU, where that was asked for.
    """

    mode: str = Mode.CPU
    versions: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    iterations: int = 0
    device_requests: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
    lines: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tensors: NamedTensors = field(default_factory=NamedTensors)
    optimizers: tuple[OptimizerNote, ...] = ()
    script_ended: bool = False
    values: tuple[ValueRead, ...] = ()
    streams: StreamNotes = field(default_factory=StreamNotes)
    attention: AttentionNotes = field(default_factory=AttentionNotes)
    doubts: tuple[Doubt, ...] = ()
    nccl: NcclNotes = field(default_factory=NcclNotes)
    phantom: PhantomNotes | None = None
    measured: AllocatorNotes | None = None
    launches: LaunchNotes | None = None

    @property
    def torch_version(self) -> str | None:
        """The PyTorch that ran, such as ``2.13.0``; None if it was not noted."""
        noted = self.versions.get("torch")
        return str(noted).partition("+")[0] if noted else None

    @property
    def allocator(self) -> AllocatorNotes | None:
        """What PyTorch's own allocator reported about the run; None for one on the CPU."""
        return self.phantom or self.measured


def parse_notes(noted: Mapping[str, Any]) -> CaptureNotes:
    """Parse the ``xmem`` object of a trace.

    Raises:
        ValueError: It has another format, or is damaged; the message says where.
    """
    phantom = noted.get("phantom")
    if isinstance(phantom, Mapping) and isinstance(phantom.get("requests"), Mapping):
        phantom = {**phantom, "unordered_requests": phantom["requests"], "requests": []}
        noted = {**noted, "phantom": phantom}
    notes: CaptureNotes = decode(CaptureNotes, noted, skip_unknown=True)
    _require_columns(notes.tensors)
    _require_streams(notes.streams)
    _require_attention(notes.attention)
    _require_nccl(notes.nccl)
    for requests in notes.phantom.requests if notes.phantom else ():
        _require_history(requests)
    if notes.launches is not None:
        _require_launches(notes.launches)
    return notes


_MOST_POOLS = 1 << 20
_EVER = ("name", "address", "size_bytes", "time_ns")  # columns that each capture writes


def _require_columns(tensors: NamedTensors) -> None:
    """Check that each column has as many rows as there are roles.

    Raises:
        ValueError: A column is shorter or longer, or a shape is no list of whole numbers.
    """
    later = [column for column in ("dtype", "shape", "group") if getattr(tensors, column) is not None]
    if not tensors.dtype:  # an early capture
        later.remove("dtype")
    for column in (*_EVER, *later):
        values = getattr(tensors, column)
        if len(values) != len(tensors.role):
            raise ValueError(f"tensors.{column} must have {len(tensors.role)} rows, not {len(values)}")
    for shape in tensors.shape or ():
        if not (isinstance(shape, list) and all(type(size) is int and 0 <= size < 1 << 62 for size in shape)):
            raise ValueError("tensors.shape must hold lists of whole numbers")


def _require_streams(streams: StreamNotes) -> None:
    """Check that columns which belong together have the same length.

    Raises:
        ValueError: They have not.
    """
    if len(streams.time_ns) != len(streams.stream):
        raise ValueError("streams.stream must have as many rows as streams.time_ns")
    if not len(streams.used_address) == len(streams.used_ns) == len(streams.used_on):
        raise ValueError("streams.used_address, used_ns and used_on must have as many rows as each other")


def _require_attention(attention: AttentionNotes) -> None:
    """Check that the columns have the same length.

    Raises:
        ValueError: They have not.
    """
    if not len(attention.time_ns) == len(attention.kernels) == len(attention.in_order):
        raise ValueError("attention.kernels and in_order must have as many rows as attention.time_ns")


_MOST_RANKS = 1 << 24
_SETTINGS_OF_NCCL = 3


def _require_nccl(nccl: NcclNotes) -> None:
    """Check that NCCL's numbers are small enough to be multiplied.

    Raises:
        ValueError: One is not, or there is another number of settings.
    """
    if len(nccl.settings) != _SETTINGS_OF_NCCL or not all(0 <= n < 1 << 40 for n in nccl.settings):
        raise ValueError(f"nccl.settings must hold {_SETTINGS_OF_NCCL} numbers of at most 40 bits")
    for made in nccl.communicators:
        if not (1 <= made.here <= made.ranks <= _MOST_RANKS and 0 <= made.near_peers < made.ranks):
            raise ValueError("nccl.communicators holds one whose ranks do not fit together")
        if not 0 <= made.taken_bytes < 1 << 50:
            raise ValueError("nccl.communicators holds one that takes more than 50 bits of bytes")


_NUMBERS_OF_KERNEL = 11


def _require_launches(launches: LaunchNotes) -> None:
    """Check that all columns have the same length, and that each launch has a row of the table.

    Raises:
        ValueError: They do not, or a row of the table is damaged.
    """
    count = len(launches.what)
    for column in ("thread", "stream", "time_ns"):
        if len(getattr(launches, column)) != count:
            raise ValueError(f"launches.{column} must have {count} rows")
    if not all(0 <= row < len(launches.table) for row in launches.what):
        raise ValueError(f"launches.what must name one of the {len(launches.table)} rows of launches.table")
    for row in launches.table:
        if not _is_row(row, int, str, dict) and not (
            _is_row(row, int, str, *[int] * _NUMBERS_OF_KERNEL) and all(-1 <= n < 1 << 31 for n in row[2:])
        ):
            raise ValueError("launches.table holds a row that is neither a kernel nor a call")


def _require_history(requests: DeviceRequests) -> None:
    """Check that what refers to the allocations of a history names one of them.

    Raises:
        ValueError: A column has another length, a free has no allocation before it, or a number is too large.
    """
    count = len(requests.address)
    for column in ("size_bytes", "stream", "mempool"):
        values = getattr(requests, column)
        if len(values) != count and (values or column == "size_bytes"):
            raise ValueError(f"phantom.requests.{column} must have {count} rows, not {len(values)}")
    allocations, freed = 0, set()
    for request in requests.order:
        if request == -1:
            allocations += 1
        elif 0 <= request < allocations and request not in freed:
            freed.add(request)
        else:
            raise ValueError(f"phantom.requests.order frees {request}, which is not allocated")
    ranges = {
        "order": allocations == count,
        "size_bytes": min(requests.size_bytes, default=0) >= 0,
        "mempool": all(0 <= pool < _MOST_POOLS for pool in requests.mempool),
        "waits": all(0 <= row < count for row in requests.waits),
        "restored": all(
            _is_row(row, int, int) and 0 <= row[0] < count and row[1] < count for row in requests.restored
        ),
        "marks": all(
            _is_row(mark, int, str, int) and mark[0] >= 0 and -1 <= mark[2] < _MOST_POOLS
            for mark in requests.marks
        ),
    }
    for column, is_in_range in ranges.items():
        if not is_in_range:
            raise ValueError(f"phantom.requests.{column} does not fit its {count} allocations")


def _is_row(row: Any, *kinds: type) -> bool:
    return isinstance(row, list) and [type(value) for value in row] == list(kinds)


NO_NOTES = CaptureNotes()
"""Of a trace from elsewhere."""
