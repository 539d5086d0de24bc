"""Streams of the described GPU: all work on them is done, but memory belongs to the one that it was made on.

The allocator of CUDA has a pool for each stream, and keeps a block that another stream uses until that is
done (``record_stream``). So it is noted which stream is current when, and which memory others use.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter
from typing import Any

import torch

from ..watching.device_memory import CUDA, storage_of
from ..watching.spans import now_ns

_IN_POOL = 32  # streams of one priority; more are the first ones again (c10/cuda/CUDAStream.cpp)
_DEFAULT = 0


class _Current(threading.local):
    """The stream on which this thread works."""

    stream: Stream | None = None


class Streams:
    """Which stream is current when, and which memory is used on others."""

    def __init__(self) -> None:
        self._current = _Current()
        self._made: Counter[int] = Counter()  # of each priority
        # For the whole run: of changes the thread, time and stream; of uses the address, time and stream.
        self._changes, self._uses = array("q"), array("q")

    @property
    def current(self) -> Stream:
        """The stream on which the calling thread works."""
        return self._current.stream or DEFAULT

    def set(self, stream: Any) -> None:
        """Make a stream the one on which the calling thread works."""
        if isinstance(stream, Stream) and stream is not self.current:
            self._current.stream = stream
            self._changes.extend((threading.get_native_id(), now_ns(), stream.stream_id))

    def note_use(self, tensor: torch.Tensor, stream: Any) -> None:
        """Note that a stream uses the memory of a tensor."""
        storage = storage_of(tensor)
        if storage is not None and isinstance(stream, Stream):
            self._uses.extend((storage.data_ptr(), now_ns(), stream.stream_id))

    def number(self, priority: int) -> int:
        """Return the number of a new stream."""
        self._made[priority] += 1
        return 1 + (self._made[priority] - 1) % _IN_POOL + _IN_POOL * max(-priority, 0)

    def columns(self, thread: int, base_ns: int) -> dict[str, list[int]]:
        """Return what a thread noted, with times since ``base_ns`` (``StreamNotes``)."""
        changes = [i for i in range(0, len(self._changes), 3) if self._changes[i] == thread]
        return {
            "time_ns": [self._changes[i + 1] - base_ns for i in changes],
            "stream": [self._changes[i + 2] for i in changes],
            "used_address": self._uses[0::3].tolist(),
            "used_ns": [time_ns - base_ns for time_ns in self._uses[1::3]],
            "used_on": self._uses[2::3].tolist(),
        }


class Event:
    """A CUDA event that has always happened."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - torch's signature
        self._at_ns = 0

    def record(self, stream: Any = None) -> None:  # noqa: ARG002 - torch's signature
        """Take the time of the host, which stands in for that of a stream."""
        self._at_ns = time.perf_counter_ns()

    def wait(self, stream: Any = None) -> None:
        """Do nothing: there is nothing to wait for."""

    def synchronize(self) -> None:
        """Do nothing: there is nothing to wait for."""

    def query(self) -> bool:
        """Return whether it has happened."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between two events: above 0, because scripts divide by them."""
        return (end._at_ns - self._at_ns) / 1e6


class Stream:
    """A CUDA stream on which all work is done."""

    device = CUDA
    device_index = CUDA.index
    device_type = 1

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:  # noqa: ARG002
        self.priority = priority
        self.stream_id = options.get("stream_id", -1)
        if self.stream_id < 0:
            self.stream_id = streams.number(priority)
        self._before: list[Stream] = []

    @property
    def cuda_stream(self) -> int:
        """The handle."""
        return int(self.stream_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash((Stream, self.stream_id))

    def __enter__(self) -> Stream:
        self._before.append(streams.current)
        streams.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        streams.set(self._before.pop())

    def wait_event(self, event: Any) -> None:
        """Do nothing: there is nothing to wait for."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: there is nothing to wait for."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event behind all work so far."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Do nothing: there is nothing to wait for."""

    def query(self) -> bool:
        """Return whether all work is done."""
        return True

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured."""
        return False


class StreamContext:
    """``with torch.cuda.stream(stream)``."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._before = DEFAULT

    def __enter__(self) -> None:
        self._before = streams.current
        streams.set(self.stream)

    def __exit__(self, *exception: object) -> None:
        streams.set(self._before)


streams = Streams()
"""Of this process."""
DEFAULT = Stream(stream_id=_DEFAULT)
