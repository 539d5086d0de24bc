"""Reads a profiler trace into columns. The rules are those of docs/trace_model.md."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from xmem import _core
from xmem.errors import TraceError
from xmem.files.documents import parse_json
from xmem.files.sources import Source, TraceSource, open_source
from xmem.files.system import usable_processors
from xmem.printable import one_line
from xmem.records import dataclass
from xmem.trace.notes import FORMAT, NO_NOTES, CaptureNotes, parse_notes

_KERNEL_OF_2021 = "Kernel"

if TYPE_CHECKING:
    from concurrent.futures import Future

SPAN_KINDS = ("operator", "annotation", "module_frame", "user_frame", "module", "line", "host", "iteration")
"""Names of the values of ``EventTable.kind``."""

WITH_INPUTS = (
    "aten::_convolution",
    "aten::_index_put_impl_",
    "aten::addmm",
    "aten::batch_norm",
    "aten::convolution_backward",
    "aten::embedding",
    "aten::embedding_dense_backward",
    "aten::group_norm",
    "aten::gru",
    "aten::instance_norm",
    "aten::layer_norm",
    "aten::linalg_vector_norm",
    "aten::linear",
    "aten::lstm",
    "aten::mean",
    "aten::rms_norm",
    "aten::rnn_relu",
    "aten::rnn_tanh",
    "aten::scaled_dot_product_attention",
    "aten::sum",
    "torch::autograd::AccumulateGrad",
)
"""Operators whose inputs are kept: those that policies look at, which declare them (``inputs_of``)."""

_PIECES_AHEAD = 4
_MAX_THREADS = 8  # one thread cuts the text into windows: more threads would wait for it


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """The progress of a read.

    Attributes:
        text_bytes: Bytes of uncompressed text so far.
        source_bytes: Bytes of the source read for it: compressed bytes of a compressed file.
        source_size_bytes: Length of the source, -1 = not known.
    """

    text_bytes: int
    source_bytes: int
    source_size_bytes: int


Progress: TypeAlias = Callable[[ReadProgress], None]


@dataclass(frozen=True)
class EventTable:
    """Spans (operators, annotations, modules, lines), sorted by thread, begin, longest first.

    Attributes:
        kind: uint8, index into ``SPAN_KINDS``.
        name: int32, id for ``Trace.name``.
        thread: int32, threads numbered in order of first appearance.
        begin_ns: int64, nanoseconds on the trace's clock.
        end_ns: int64, half-open.
        sequence_number: int64, autograd's number of the node, -1 = none.
        forward_thread: int64, -1 = none.
        input_types: int32, id for ``Names.json`` of the value of ``Input type``, -1 = none.
        inputs: int32, id for ``Names.json`` of ``[Input Dims, Input Strides, Concrete Inputs]``, None for one
            that was not recorded; -1 = none was recorded, or the operator is not one of ``WITH_INPUTS``.
    """

    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    sequence_number: NDArray[np.int64]
    forward_thread: NDArray[np.int64]
    input_types: NDArray[np.int32]
    inputs: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class MemoryTable:
    """Memory instants, sorted by time.

    Attributes:
        time_ns: int64, nanoseconds on the trace's clock.
        address: int64, -1 = the trace does not say.
        bytes: int64, positive for an allocation, negative for a free.
        device_type: int8, 0 CPU, 1 CUDA, 6 ROCm.
        device_index: int32, -1 for the CPU.
        thread: int32.
        total_allocated: int64 bytes after the event, -1 = the trace does not say.
        total_reserved: int64 bytes after the event, -1 = the trace does not say.
    """

    time_ns: NDArray[np.int64]
    address: NDArray[np.int64]
    bytes: NDArray[np.int64]
    device_type: NDArray[np.int8]
    device_index: NDArray[np.int32]
    thread: NDArray[np.int32]
    total_allocated: NDArray[np.int64]
    total_reserved: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True)
class Problem:
    """Something wrong with the input, counted.

    Attributes:
        kind: Name of the problem, for programs.
        count: How often it occurred.
        first_byte_offset: Offset of the first case in the uncompressed text, -1 = none.
        severity: ``info`` or ``data_loss``.
        message: Its meaning, for people.
    """

    kind: str
    count: int
    first_byte_offset: int
    severity: str
    message: str


class Rank(NamedTuple):
    """A process of a distributed job.

    Attributes:
        number: From 0.
        world_size: Number of processes of the job.
    """

    number: int
    world_size: int


class Names:
    """The interned names of a trace: ``names[id] -> str``; an id of -1 is the empty string."""

    def __init__(self, core: _core.Trace) -> None:
        self._core = core

    def __len__(self) -> int:
        return self._core.name_count

    def __getitem__(self, name_id: int) -> str:
        return "" if name_id < 0 else one_line(self._core.name(int(name_id)))

    def json(self, name_id: int) -> Any:
        """Return the value of a name that is JSON text, like ``EventTable.input_types``; None for -1 and for
        text that cannot be read."""
        try:
            return None if name_id < 0 else parse_json(self._core.name(int(name_id)))
        except ValueError:
            return None

    def list_in(self, name_id: int) -> list[Any]:
        """Return the list that a name holds as JSON text; an empty one for -1 and for other text."""
        found = self.json(name_id)
        return found if isinstance(found, list) else []

    def matching(self, wanted: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Return for every name whether it is wanted: a lookup table for whole columns of ids."""
        return np.fromiter(map(wanted, self._texts), np.bool_, len(self))

    @cached_property
    def _texts(self) -> list[str]:
        return [one_line(name) for name in self._core.names]


class Trace:
    """A profiler trace as columns; make one with ``read_trace``."""

    def __init__(self, core: _core.Trace, path: str | None) -> None:
        self.core = core
        self.path = path
        self.names = Names(core)

    @cached_property
    def events(self) -> EventTable:
        """The spans of the trace."""
        core = self.core
        return EventTable(
            kind=core.span_kind,
            name=core.span_name,
            thread=core.span_thread,
            begin_ns=core.span_begin_ns,
            end_ns=core.span_end_ns,
            sequence_number=core.span_sequence_number,
            forward_thread=core.span_forward_thread,
            input_types=core.span_input_types,
            inputs=core.span_inputs,
        )

    @cached_property
    def memory(self) -> MemoryTable:
        """The memory instants of the trace."""
        core = self.core
        return MemoryTable(
            time_ns=core.memory_time_ns,
            address=core.memory_address,
            bytes=core.memory_bytes,
            device_type=core.memory_device_type,
            device_index=core.memory_device_index,
            thread=core.memory_thread,
            total_allocated=core.memory_total_allocated,
            total_reserved=core.memory_total_reserved,
        )

    @cached_property
    def process_of_thread(self) -> NDArray[np.int32]:
        """A number for the process of each thread of the tables; int32."""
        return self.core.process_of_thread

    @cached_property
    def rank(self) -> Rank | None:
        """Which process of a distributed job the trace is of; None where it does not say.

        Source: ``distributedInfo`` of libkineto, in the traces of torch 2.1 and newer.
        """
        try:
            noted = parse_json(self.core.distributed) if self.core.distributed else None
        except ValueError:
            return None
        if not isinstance(noted, dict):
            return None
        rank, world_size = noted.get("rank"), noted.get("world_size")
        if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
            return None
        return Rank(rank, world_size)

    @cached_property
    def metadata(self) -> dict[str, Any] | None:
        """What our capture wrote about the run, None for a trace from elsewhere."""
        if not self.core.metadata:
            return None
        try:
            metadata = parse_json(self.core.metadata)
        except ValueError as error:
            raise TraceError(
                f"the capture's own metadata (key 'xmem') is damaged: {error}; capture again", self.path
            ) from None
        if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
            raise TraceError(
                "the metadata under the key 'xmem' has a format that this version does not know; "
                "capture again, or use a newer xmem-fast",
                self.path,
            )
        return cast("dict[str, Any]", metadata)

    @cached_property
    def notes(self) -> CaptureNotes:
        """The metadata, typed; ``NO_NOTES`` for a trace from elsewhere.

        Raises:
            TraceError: It is damaged, or has a format that this version does not know.
        """
        if self.metadata is None:
            return NO_NOTES
        try:
            return parse_notes(self.metadata)
        except ValueError as error:
            raise TraceError(
                f"the capture's own metadata (key 'xmem') is damaged: {error}; capture again", self.path
            ) from None

    @property
    def is_captured(self) -> bool:
        """Whether our capture made the trace."""
        return self.metadata is not None

    @property
    def counts(self) -> dict[str, int]:
        """Event counts by kind, or by category for events that are not kept."""
        return self.core.counts

    @property
    def kernels(self) -> int:
        """Number of GPU kernels."""
        return sum(self.counts.get(name, 0) for name in ("kernel", _KERNEL_OF_2021))

    @property
    def is_of_2021(self) -> bool:
        """Whether the trace shows a GPU in the words of PyTorch 1.8 to 1.10."""
        return _KERNEL_OF_2021 in self.counts

    @property
    def bytes(self) -> int:
        """The length of the uncompressed text."""
        return self.core.bytes

    @property
    def problems(self) -> list[Problem]:
        """The problems of the file, by kind."""
        return [Problem(*found) for found in self.core.diagnostics]

    @property
    def diagnostics(self) -> list[tuple[str, int, int]]:
        """(kind, count, first byte offset) of each problem."""
        return [(problem.kind, problem.count, problem.first_byte_offset) for problem in self.problems]

    def __repr__(self) -> str:
        size = f"{len(self.events):,} spans, {len(self.memory):,} memory events"
        return f"<Trace {self.path or 'from bytes'}: {size}>"


def read_trace(source: TraceSource, *, progress: Progress | None = None, threads: int | None = None) -> Trace:
    """Read a profiler trace: plain, gzip or zstd, recognised by content, not by name.

    Args:
        source: Path; URL that fsspec reads; ``-`` for standard input; the bytes of a file; a file opened in
            binary mode, from where it stands.
        progress: Called now and then from the calling thread.
        threads: Number of threads that decode the text of a plain file; by default as many as this process
            may use, up to 8. Other sources take two: one waits and decompresses, one decodes. The trace is
            the same for any number.

    Raises:
        TraceError: The source cannot be read, is cut or damaged, or is not a profiler trace; the byte offset
            is that in the uncompressed text.
    """
    with open_source(source) as opened:
        try:
            core = (
                _read_pieces(opened, progress)
                if opened.plain_path is None
                else _read_plain_file(
                    opened.plain_path, opened.size_bytes, progress, threads or _usable_processors()
                )
            )
        except TraceError as error:
            raise TraceError(error.message, opened.name, error.byte_offset, error.event_index) from None
    return Trace(core, opened.name)


def _usable_processors() -> int:
    return min(usable_processors(), _MAX_THREADS)


def _read_plain_file(path: Path, size_bytes: int, progress: Progress | None, threads: int) -> _core.Trace:
    name = os.fsencode(path)
    if progress is None:
        return _core.read_trace_file(name, WITH_INPUTS, None, threads)

    def report(done: int) -> None:
        progress(ReadProgress(done, done, size_bytes))

    return _core.read_trace_file(name, WITH_INPUTS, report, threads)


def _read_pieces(source: Source, progress: Progress | None) -> _core.Trace:
    """Parse on another thread while this one waits for the source and decompresses."""
    from concurrent.futures import ThreadPoolExecutor

    reader = _core.TraceReader(WITH_INPUTS)

    def feed(piece: bytes, before: Future[None] | None) -> None:
        if before is not None:
            before.result()  # parsing stops at a piece that could not be parsed
        reader.feed(piece)

    with ThreadPoolExecutor(1, "xmem-parser") as parser:
        fed: deque[Future[None]] = deque()
        try:
            for piece in source.pieces():
                if piece:
                    fed.append(parser.submit(feed, piece, fed[-1] if fed else None))
                while fed and (len(fed) > _PIECES_AHEAD or fed[0].done()):
                    fed.popleft().result()
                if progress is not None:
                    progress(ReadProgress(source.text_bytes, source.taken_bytes, source.size_bytes))
        except TraceError:
            if fed:
                fed[-1].result()  # the earlier error in the text is the one to report
            raise
        if fed:
            fed[-1].result()
    return reader.finish()
