"""Completes the profiler's file: metadata and our spans go in at its head, the rest is copied as a stream."""

from __future__ import annotations

import gzip
import json
import mmap
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from ..watching.spans import Span

CPU = 0  # the profiler's device types
CUDA = 1


class MemoryChange(NamedTuple):
    """An allocation that the profiler did not see or, with a negative size, its free; in the trace's time."""

    time_ns: int
    device_type: int
    device_index: int
    address: int
    size_bytes: int
    total_allocated_bytes: int = -1  # of the device, with this one
    total_reserved_bytes: int = -1
    thread: int = -1  # native id, 0 if unknown; -1 for the process's first thread


class SeenMemory(NamedTuple):
    """An allocation or, with a negative size, a free on a GPU that the profiler saw; in the trace's time."""

    time_ns: int
    device_index: int
    address: int
    size_bytes: int
    thread: int


_HEAD_BYTES = 1 << 16
_TAIL_BYTES = 1 << 12
_COPY_BYTES = 1 << 20
_BASE = re.compile(rb'"baseTimeNanoseconds":\s*(\d+)')
# The name of the machine, and the path of the private file.
_OF_MACHINE = re.compile(rb'("(?:host_name|traceName)":\s*)"(?:[^"\\]|\\.)*"')
_EVENTS = re.compile(rb'"traceEvents":\s*\[')
_MEMORY = re.compile(rb'"name": *"\[memory\]"')
_MOST_OF_MEMORY_EVENT = 4096


class ProfilerFile:
    """A file that the profiler wrote, and where its events begin."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # The profiler does not report a full disk: it leaves no file, or part of one.
        size = path.stat().st_size if path.exists() else 0
        if size == 0:
            raise OSError("the profiler could not write its trace")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
            if not tail.rstrip().endswith(b"}"):
                raise OSError(f"the profiler could not write its whole trace ({size:,} bytes arrived)")
        # Before the events or, until torch 2.6, after them.
        base, events = _BASE.search(head) or _BASE.search(tail), _EVENTS.search(head)
        if events is None:
            raise OSError("the profiler wrote a trace without events")
        self.base_ns = int(base[1]) if base else 0
        self._tail_begin = max(events.end(), size - _TAIL_BYTES)
        self._keys_end = events.start()
        self._events_begin = events.end()

    def complete(
        self,
        output: Path,
        metadata: dict[str, Any],
        spans: Iterable[Span],
        process: int,
        memory: Iterable[MemoryChange] = (),
    ) -> None:
        """Write the trace with ``metadata`` under the key ``xmem``; ``spans`` and ``memory`` are its
        first events."""
        with self.path.open("rb") as raw, _open_trace(output) as out:
            out.write(_OF_MACHINE.sub(rb'\1""', raw.read(self._keys_end)))
            out.write(b'"xmem": ' + json.dumps(metadata).encode() + b',\n  "traceEvents": [\n')
            for span in spans:
                out.write(self._event(span, process))
            for change in memory:
                out.write(_memory_event(change, process))
            raw.seek(self._events_begin)
            for begin in range(self._events_begin, self._tail_begin, _COPY_BYTES):
                out.write(raw.read(min(_COPY_BYTES, self._tail_begin - begin)))
            out.write(_OF_MACHINE.sub(rb'\1""', raw.read()))

    def device_memory(self) -> list[SeenMemory]:
        """Return all allocations and frees on GPUs, by time."""
        found = []
        decoder = json.JSONDecoder(parse_float=str)  # a float would lose nanoseconds
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
            for name in _MEMORY.finditer(raw):
                begin = raw.rfind(b"{", 0, name.start())  # no other object stands before the name
                text = raw[begin : begin + _MOST_OF_MEMORY_EVENT].decode(errors="replace")
                event, _ = decoder.raw_decode(text)
                of = event["args"]
                if of.get("Device Type", CPU) != CPU and "Addr" in of:
                    time_ns = _nanoseconds(str(event["ts"]))
                    found.append(SeenMemory(time_ns, of["Device Id"], of["Addr"], of["Bytes"], event["tid"]))
        return sorted(found, key=lambda event: event.time_ns)

    def _event(self, span: Span, process: int) -> bytes:
        category, name, thread, begin_ns, end_ns = span
        begin, duration = _microseconds(begin_ns - self.base_ns), _microseconds(end_ns - begin_ns)
        return (
            f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {process}, '
            f'"tid": {thread}, "ts": {begin}, "dur": {duration}}},\n'
        ).encode()


def _memory_event(change: MemoryChange, process: int) -> bytes:
    thread = process if change.thread < 0 else change.thread
    return (
        f'{{"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": {process}, '
        f'"tid": {thread}, "ts": {_microseconds(change.time_ns)}, "args": {{"Ev Idx": 0, '
        f'"Device Type": {change.device_type}, "Device Id": {change.device_index}, '
        f'"Addr": {change.address}, "Bytes": {change.size_bytes}, '
        f'"Total Allocated": {change.total_allocated_bytes}, '
        f'"Total Reserved": {change.total_reserved_bytes}}}}},\n'
    ).encode()


@contextmanager
def _open_trace(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb", buffering=_COPY_BYTES) as file:
        if path.suffix == ".gz":
            # Fixed time stamp and no name: the same capture gives the same bytes.
            with gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield file


def _nanoseconds(microseconds: str) -> int:
    whole, _, fraction = microseconds.partition(".")
    return int(whole) * 1000 + int(fraction.ljust(3, "0")[:3])


def _microseconds(nanoseconds: int) -> str:
    """Format exact microseconds with the three decimals that torch writes."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
