"""Plans convolutions in a process of its own: ``planner_process.py LIBCUDNN HELPER LIBCUDA [LIBRARY ...]``.

HELPER is ``xmem_phantom_cudnn``, the one program that opens a libcudnn: it holds the descriptors, knows how
each release takes a device, and corrects the plans of releases before 9.8 by what real runs showed
(``csrc/phantom/libraries/cudnn/planning``). LIBCUDA stands in for the driver's library, empty where there is
none; the others are loaded before cuDNN.

The first line of standard input is the description of a device (JSON), answered with ``{"version": N}`` or
``{"error": text}``. Each line after it is a problem (`Problem.key`), answered with ``{"plans": [[workspace
bytes, numerical notes], ...]}`` in the order in which cuDNN ranks its engines, those of its fallback list at
the end, or with ``{"error": text}``. Needs nothing but the standard library: a fault of cuDNN, which ends the
helper and this process, costs the asking process nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

FIRST_DEVICELESS = 90800  # cudnnGetVersion of 9.8: from here on devices have descriptors, before it handles

# Operation of planning/protocol.hpp
CREATE, DESTROY, SET, GET, FINALIZE, ERROR, VERSION, _, HANDLE_OF_DEVICE = range(9)
_REQUEST = struct.Struct("<iiiiQq")  # operation, kind, type, payload bytes, descriptor, count
_REPLY = struct.Struct("<iiq")  # status, payload bytes, count

# cudnnBackendDescriptorType_t
CONVOLUTION, ENGINE, CONFIGURATION, HEURISTICS, PLAN, GRAPH, TENSOR, DEVICE = 1, 2, 3, 4, 5, 15, 17, 38
# cudnnBackendAttributeType_t
HANDLE, DATA_TYPE, INT64, DOUBLE, MODE, HEURISTIC_MODE, NOTE, DESCRIPTOR, CHAR = 0, 1, 3, 5, 7, 8, 11, 15, 24
# Descriptor of each operation, and the first of its attributes: alpha, beta, convolution, w, x, y.
OPERATIONS = {"forward": (10, 700), "data_gradient": (12, 706), "filter_gradient": (11, 712)}
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
INSTANT, FALLBACK = 0, 2
CROSS_CORRELATION = 1
ALIGNMENT = 32  # as PyTorch finds that of an allocated block
MOST_NOTES = 64

_ELEMENT = {HANDLE: "Q", INT64: "q", DOUBLE: "d", DESCRIPTOR: "Q"}  # of struct; others are 32 bits wide


class CudnnError(Exception):
    """A call that cuDNN refused."""


class _Reply(NamedTuple):
    status: int
    elements: int
    payload: bytes


class Helper:
    """The helper process, and descriptors in it under numbers."""

    def __init__(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        number = theirs.fileno()
        program, *arguments = command
        self._process = subprocess.Popen(
            [program, "--socket", str(number), "--parent", "stays", *arguments],
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._socket = ours
        self._numbers = itertools.count(1)

    def create(self, kind: int) -> int:
        """A new descriptor."""
        number = next(self._numbers)
        self._send(CREATE, kind=kind, descriptor=number)
        return number

    def destroy(self, descriptor: int) -> None:
        """Forget a descriptor."""
        self._send(DESTROY, descriptor=descriptor)

    def set(self, descriptor: int, attribute: int, element: int, values: Sequence[Any] | bytes) -> None:
        """Set an attribute; what is wrong with it is said when the descriptor is finalized."""
        payload = values if isinstance(values, bytes) else _packed(element, values)
        self._send(SET, attribute, element, descriptor, len(values), payload)

    def get(
        self, descriptor: int, attribute: int, element: int, room: int, numbers: Sequence[int] = ()
    ) -> _Reply:
        """Read so many elements of an attribute; descriptors are filled, those of these numbers.

        Raises:
            CudnnError: It is refused.
        """
        return self._ask(GET, attribute, element, descriptor, room, _packed(DESCRIPTOR, numbers))

    def finalize(self, descriptor: int) -> None:
        """Finish a descriptor.

        Raises:
            CudnnError: It is refused, or one of its attributes was.
        """
        self._ask(FINALIZE, descriptor=descriptor)

    def version(self) -> int:
        """Return the version of the library, such as 92000 for 9.20.

        Raises:
            CudnnError: It cannot be loaded.
        """
        reply = self._exchange(VERSION)
        if reply.status:
            raise CudnnError(reply.payload.decode(errors="replace"))
        return reply.elements

    def handle(self, description: str) -> int:
        """Make a handle that describes a device.

        Raises:
            CudnnError: The library does not heed it.
        """
        number = next(self._numbers)
        if self._exchange(HANDLE_OF_DEVICE, descriptor=number, payload=description.encode()).status:
            raise CudnnError(f"cuDNN {self.version()} cannot plan without a device; 9.8 and newer can")
        return number

    def _ask(self, operation: int, *fields: Any, **named: Any) -> _Reply:
        reply = self._exchange(operation, *fields, **named)
        if reply.status:
            text = self._exchange(ERROR).payload.decode(errors="replace").strip()
            raise CudnnError(f"status {reply.status}: {text}")
        return reply

    def _exchange(self, operation: int, *fields: Any, **named: Any) -> _Reply:
        self._send(operation, *fields, **named)
        status, size, count = _REPLY.unpack(self._receive(_REPLY.size))
        return _Reply(status, count, self._receive(size))

    def _send(
        self,
        operation: int,
        kind: int = 0,
        element: int = 0,
        descriptor: int = 0,
        count: int = 0,
        payload: bytes = b"",
    ) -> None:
        with contextlib.suppress(ConnectionError):  # the answer that does not come tells
            self._socket.sendall(
                _REQUEST.pack(operation, kind, element, len(payload), descriptor, count) + payload
            )

    def _receive(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = b""
            with contextlib.suppress(ConnectionError):
                part = self._socket.recv(size - len(parts))
            if not part:
                raise SystemExit(_last_status(self._process.wait()))
            parts += part
        return parts


def _last_status(status: int) -> int:
    """The status to end with where the helper ended with this one: the same, and never success."""
    return 128 - status if status < 0 else status or 1


def _packed(element: int, values: Sequence[Any]) -> bytes:
    return struct.pack(f"<{len(values)}{_ELEMENT.get(element, 'i')}", *values)


class Library:
    """The graph API of one libcudnn, about one described device."""

    def __init__(self, helper: Helper, description: str) -> None:
        self._helper = helper
        self.version = helper.version()
        self._by_handle = self.version < FIRST_DEVICELESS
        self._made: list[int] = []
        if self._by_handle:
            self._device = helper.handle(description)
        else:
            self._device = helper.create(DEVICE)
            helper.set(self._device, 2702, CHAR, description.encode() + b"\0")
            helper.finalize(self._device)

    def plans(self, problem: Sequence[Any]) -> list[tuple[int, list[int]]]:
        """Workspace and numerical notes of every plan that can be built, best first.

        Raises:
            CudnnError: There is no such convolution.
        """
        try:
            graph = self._graph(*problem)
            found = []
            for mode in (INSTANT, FALLBACK):
                with contextlib.suppress(CudnnError):
                    for configuration in self._configurations(graph, mode):
                        with contextlib.suppress(CudnnError):  # as in PyTorch, the next one is tried
                            found.append((self._workspace(configuration), self._notes(configuration)))
            return found
        finally:
            for descriptor in reversed(self._made):
                self._helper.destroy(descriptor)
            self._made.clear()

    def _graph(
        self,
        operation: str,
        dtype: str,
        x: list[int],
        w: list[int],
        y: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        channels_last: bool,
    ) -> int:
        convolution = self._make(
            CONVOLUTION,
            (100, DATA_TYPE, [DATA_TYPES["float64" if dtype == "float64" else "float32"]]),
            (101, MODE, [CROSS_CORRELATION]),
            (102, INT64, dilation),
            (103, INT64, stride),
            (104, INT64, padding),
            (105, INT64, padding),
            (106, INT64, [len(stride)]),
        )
        tensors = [
            self._make(
                TENSOR,
                (901, DATA_TYPE, [DATA_TYPES[dtype]]),
                (902, INT64, sizes),
                (903, INT64, strides(sizes, channels_last)),
                (906, INT64, [number]),
                (900, INT64, [ALIGNMENT]),
            )
            for number, sizes in enumerate((w, x, y), 1)
        ]
        kind, first = OPERATIONS[operation]
        step = self._make(
            kind,
            (first, DOUBLE, [1.0]),
            (first + 1, DOUBLE, [0.0]),
            (first + 2, DESCRIPTOR, [convolution]),
            *((first + 3 + place, DESCRIPTOR, [tensor]) for place, tensor in enumerate(tensors)),
        )
        return self._make(GRAPH, (801, DESCRIPTOR, [step]), *self._on_device(handle=800))

    def _on_device(self, *, handle: int = 0, properties: int = 0) -> Iterator[tuple[int, int, list[int]]]:
        """The attribute that says the device, where this library has one for it."""
        if self._by_handle and handle:
            yield handle, HANDLE, [self._device]
        if not self._by_handle and properties:
            yield properties, DESCRIPTOR, [self._device]

    def _configurations(self, graph: int, mode: int) -> Iterator[int]:
        heuristics = self._make(
            HEURISTICS,
            (201, DESCRIPTOR, [graph]),
            (200, HEURISTIC_MODE, [mode]),
            *self._on_device(properties=204),
        )
        count = self._helper.get(heuristics, 202, DESCRIPTOR, 0).elements
        yield from self._fill(heuristics, 202, [self._create(CONFIGURATION) for _ in range(count)])

    def _workspace(self, configuration: int) -> int:
        plan = self._make(
            PLAN, (401, DESCRIPTOR, [configuration]), *self._on_device(handle=400, properties=407)
        )
        (size,) = struct.unpack("<q", self._helper.get(plan, 402, INT64, 1).payload)
        return int(size)

    def _notes(self, configuration: int) -> list[int]:
        engine = self._create(ENGINE)
        list(self._fill(configuration, 300, [engine]))
        payload = self._helper.get(engine, 1303, NOTE, MOST_NOTES).payload
        return sorted(struct.unpack(f"<{len(payload) // 4}i", payload))

    def _create(self, kind: int) -> int:
        self._made.append(self._helper.create(kind))
        return self._made[-1]

    def _make(self, kind: int, *attributes: tuple[int, int, Sequence[Any]]) -> int:
        descriptor = self._create(kind)
        for attribute, element, values in attributes:
            self._helper.set(descriptor, attribute, element, values)
        self._helper.finalize(descriptor)
        return descriptor

    def _fill(self, descriptor: int, attribute: int, made: Sequence[int]) -> Iterator[int]:
        """The descriptors that were filled, of those made for it."""
        filled = self._helper.get(descriptor, attribute, DESCRIPTOR, len(made), made)
        yield from made[: min(filled.elements, len(made))]


def strides(sizes: Sequence[int], channels_last: bool) -> list[int]:
    """Of a tensor without gaps; channels are the second dimension."""
    order = [0, *range(2, len(sizes)), 1] if channels_last else range(len(sizes))
    found = [0] * len(sizes)
    step = 1
    for dimension in reversed(list(order)):
        found[dimension] = step
        step *= sizes[dimension]
    return found


def main(path: str, helper: str, driver: str, *before: str) -> None:
    """Answer until standard input ends."""

    def answer(**members: Any) -> None:
        print(json.dumps(members, separators=(",", ":")), flush=True)

    description = sys.stdin.readline()
    options = [word for library in before for word in ("--before", library)]
    if driver:
        options += ["--driver", driver]
    try:
        cudnn = Library(Helper([helper, *options, path]), description.rstrip("\n"))
        answer(version=cudnn.version)
    except (OSError, CudnnError) as error:
        answer(error=str(error))
        return
    for line in sys.stdin:
        try:
            answer(plans=cudnn.plans(json.loads(line)))
        except CudnnError as error:
            answer(error=str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
