"""The child process that holds cuDNN: ``python planner_process.py LIBCUDNN LIBCUDA [LIBRARY ...]``.

LIBCUDA is a stand-in for the driver's library, empty where there is none; the others are loaded before cuDNN.
The first line of standard input is the description of a device (JSON), answered with ``{"version": N}`` or
``{"error": text}``. Each line after it is a problem (`Problem.key`), answered with ``{"plans": [[workspace
bytes, numerical notes], ...]}`` in the order in which cuDNN ranks its engines, those of its fallback list at
the end, or with ``{"error": text}``. Needs nothing but the standard library: a fault of cuDNN, which ends the
process, costs the asking process nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

FIRST_DEVICELESS = 90800  # cudnnGetVersion of 9.8
FIRST_DESCRIBED_HANDLE = 90000
FIRST_WITH_DRIVER = 92500  # tried: 9.24 does without, 9.28 does not

# cudnnBackendDescriptorType_t
CONVOLUTION, ENGINE, CONFIGURATION, HEURISTICS, PLAN, GRAPH, TENSOR, DEVICE = 1, 2, 3, 4, 5, 15, 17, 38
# cudnnBackendAttributeType_t
HANDLE, DATA_TYPE, INT64, DOUBLE, MODE, HEURISTIC_MODE, NOTE, DESCRIPTOR, CHAR = 0, 1, 3, 5, 7, 8, 11, 15, 24
# Descriptor of each operation, and the first of its attributes: alpha, beta, convolution, w, x, y.
OPERATIONS = {"forward": (10, 700), "data_gradient": (12, 706), "filter_gradient": (11, 712)}
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
ELEMENT_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
INSTANT, FALLBACK = 0, 2
TENSOR_CORES = 0  # CUDNN_NUMERICAL_NOTE_TENSOR_CORE
CROSS_CORRELATION = 1
ALIGNMENT = 32  # as PyTorch finds that of an allocated block
MOST_NOTES = 64

# A convolution that every device has plans for.
PROBE = (
    "forward",
    "float32",
    [8, 64, 32, 32],
    [64, 64, 3, 3],
    [8, 64, 32, 32],
    [1, 1],
    [1, 1],
    [1, 1],
    False,
)
HANDLE_BYTES = 1 << 16

_ELEMENT: dict[int, Any] = {
    HANDLE: ctypes.c_void_p,
    INT64: ctypes.c_int64,
    DOUBLE: ctypes.c_double,
    DESCRIPTOR: ctypes.c_void_p,
}


class CudnnError(Exception):
    """A call that cuDNN refused."""


class DeviceProperties(ctypes.Structure):
    """What a handle of 9.0 to 9.7 begins with: the members of a described device in the order in which 9.8
    keeps them. Observed: of its handle, a finalized operation graph of 9.1 and 9.5 reads the first 200 bytes
    and no others.
    """

    _fields_ = (
        ("maxGridSize", ctypes.c_int32 * 3),
        ("maxBlockSize", ctypes.c_int32 * 3),
        ("regsPerBlock", ctypes.c_int32),
        ("multiProcessorCount", ctypes.c_int32),
        ("warpSize", ctypes.c_int32),
        ("maxSharedMemoryPerBlock", ctypes.c_int32),
        ("maxSharedMemoryPerBlockOptin", ctypes.c_int32),
        ("reservedSharedMemoryPerBlock", ctypes.c_int32),
        ("maxRegistersPerSM", ctypes.c_int32),
        ("maxCtasPerSM", ctypes.c_int32),
        ("maxThreadsPerSM", ctypes.c_int32),
        ("pciDeviceId", ctypes.c_int32),
        ("isTccDriver", ctypes.c_int32),
        ("supportCoopLaunch", ctypes.c_int32),
        ("totalGlobalMem", ctypes.c_int64),
        ("smClockRateKHz", ctypes.c_int32),
        ("memClockRateKHz", ctypes.c_int32),
        ("l2CacheSize", ctypes.c_int32),
        ("cudaDeviceId", ctypes.c_int32),
        ("deviceVer", ctypes.c_int32),
        ("driverVer", ctypes.c_int32),
    )

    @classmethod
    def of(cls, description: str) -> DeviceProperties:
        """The device of a description."""
        members = json.loads(description)
        made = cls()
        for name, kind in cls._fields_:
            value = members[name]
            setattr(made, name, kind(*value) if isinstance(value, list) else value)
        return made


class Library:
    """The graph API of one libcudnn."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.cudnnGetVersion.restype = ctypes.c_size_t
        self._made: list[ctypes.c_void_p] = []
        self._device = ctypes.c_void_p()  # a descriptor, or the handle of a library that has none
        self._handle: ctypes.Array[ctypes.c_char] | None = None

    @property
    def version(self) -> int:
        """Such as 92000 for 9.20."""
        return int(self._library.cudnnGetVersion())

    def describe(self, description: str) -> None:
        """Plan for this device from here on.

        Raises:
            CudnnError: The library refuses it.
        """
        if self.version < FIRST_DEVICELESS:
            self._describe_handle(description)
            return
        text = description.encode()
        device = self._create(DEVICE)
        buffer = ctypes.create_string_buffer(text)
        self._check(
            self._library.cudnnBackendSetAttribute(device, 2702, CHAR, ctypes.c_int64(len(text) + 1), buffer)
        )
        self._check(self._library.cudnnBackendFinalize(device))
        self._made.remove(device)
        self._device = device

    def _describe_handle(self, description: str) -> None:
        """Up to 9.7 heuristics and plans need no device either, but take its properties from a handle."""
        if self.version < FIRST_DESCRIBED_HANDLE:
            raise CudnnError(f"cuDNN {self.version} cannot plan without a device, 9.0 and newer can")
        self._use_handle(b"")
        if self.plans(PROBE, [INSTANT]):
            raise CudnnError(f"cuDNN {self.version} plans for a device that it was not told of")
        self._use_handle(bytes(DeviceProperties.of(description)))
        if not self.plans(PROBE, [INSTANT]):
            raise CudnnError(f"cuDNN {self.version} cannot plan without a device, 9.8 and newer can")

    def _use_handle(self, properties: bytes) -> None:
        self._handle = ctypes.create_string_buffer(properties, HANDLE_BYTES)
        self._device = ctypes.c_void_p(ctypes.addressof(self._handle))

    def plans(
        self, problem: Sequence[Any], modes: Sequence[int] = (INSTANT, FALLBACK)
    ) -> list[tuple[int, list[int]]]:
        """Workspace and numerical notes of every plan that can be built, best first."""
        try:
            graph = self._graph(*problem)
            found = []
            for mode in modes:
                with contextlib.suppress(CudnnError):
                    for configuration in self._configurations(graph, mode):
                        with contextlib.suppress(CudnnError):  # as in PyTorch, the next one is tried
                            found.append(self._plan(configuration, problem))
            return found
        finally:
            for descriptor in reversed(self._made):
                self._library.cudnnBackendDestroyDescriptor(descriptor)
            self._made.clear()

    def _plan(self, configuration: ctypes.c_void_p, problem: Sequence[Any]) -> tuple[int, list[int]]:
        """Workspace and numerical notes.

        Raises:
            CudnnError: It cannot be built.
        """
        if self._handle is None or problem is PROBE:
            return self._workspace(configuration), self._notes(configuration)
        workspace: int | None = None
        with contextlib.suppress(CudnnError):
            workspace = self._workspace(configuration)
        notes = self._notes(configuration)
        return workspace_on_device(problem, workspace, TENSOR_CORES in notes), notes

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
    ) -> ctypes.c_void_p:
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

    def _on_device(
        self, *, handle: int = 0, properties: int = 0
    ) -> Iterator[tuple[int, int, list[ctypes.c_void_p]]]:
        """The attribute that says the device, where this library has one for it."""
        if self._handle is not None and handle:
            yield handle, HANDLE, [self._device]
        if self._handle is None and properties:
            yield properties, DESCRIPTOR, [self._device]

    def _configurations(self, graph: ctypes.c_void_p, mode: int) -> Iterator[ctypes.c_void_p]:
        heuristics = self._make(
            HEURISTICS,
            (201, DESCRIPTOR, [graph]),
            (200, HEURISTIC_MODE, [mode]),
            *self._on_device(properties=204),
        )
        configurations = [
            self._create(CONFIGURATION) for _ in range(self._count(heuristics, 202, DESCRIPTOR))
        ]
        yield from self._fill(heuristics, 202, configurations)

    def _workspace(self, configuration: ctypes.c_void_p) -> int:
        plan = self._make(
            PLAN, (401, DESCRIPTOR, [configuration]), *self._on_device(handle=400, properties=407)
        )
        size = ctypes.c_int64(0)
        self._get(plan, 402, INT64, 1, ctypes.byref(size))
        return size.value

    def _notes(self, configuration: ctypes.c_void_p) -> list[int]:
        engine = self._create(ENGINE)
        list(self._fill(configuration, 300, [engine]))
        notes = (ctypes.c_int * MOST_NOTES)()
        count = self._get(engine, 1303, NOTE, MOST_NOTES, notes)
        return sorted(notes[:count])

    def _create(self, kind: int) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self._check(self._library.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)))
        self._made.append(descriptor)
        return descriptor

    def _make(self, kind: int, *attributes: tuple[int, int, Sequence[Any]]) -> ctypes.c_void_p:
        descriptor = self._create(kind)
        for attribute, element, values in attributes:
            array = (_ELEMENT.get(element, ctypes.c_int) * len(values))(
                *(value.value if isinstance(value, ctypes.c_void_p) else value for value in values)
            )
            count = ctypes.c_int64(len(values))
            self._check(self._library.cudnnBackendSetAttribute(descriptor, attribute, element, count, array))
        self._check(self._library.cudnnBackendFinalize(descriptor))
        return descriptor

    def _fill(
        self, descriptor: ctypes.c_void_p, attribute: int, made: Sequence[ctypes.c_void_p]
    ) -> Iterator[ctypes.c_void_p]:
        """The descriptors that were filled, of those made for it."""
        array = (ctypes.c_void_p * len(made))(*(each.value for each in made))
        yield from made[: self._get(descriptor, attribute, DESCRIPTOR, len(made), array)]

    def _count(self, descriptor: ctypes.c_void_p, attribute: int, element: int) -> int:
        return self._get(descriptor, attribute, element, 0, None)

    def _get(self, descriptor: ctypes.c_void_p, attribute: int, element: int, room: int, into: Any) -> int:
        count = ctypes.c_int64(0)
        self._check(
            self._library.cudnnBackendGetAttribute(
                descriptor, attribute, element, ctypes.c_int64(room), ctypes.byref(count), into
            )
        )
        return min(count.value, room) if room else count.value

    def _check(self, status: int) -> None:
        if status == 0:
            return
        text = ctypes.create_string_buffer(1000)
        self._library.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))
        raise CudnnError(f"status {status}: {text.value.decode(errors='replace').strip()}")


def workspace_on_device(problem: Sequence[Any], workspace: int | None, tensor_cores: bool) -> int:
    """Workspace of a plan of 9.0 to 9.7 as real runs showed it, given what it is without a device.

    The rules and their evidence: ``csrc/phantom/libraries/cudnn_observed_plans.hpp``.

    Args:
        problem: The convolution.
        workspace: In bytes, None for a plan that cannot be built without a device.
        tensor_cores: Whether its engine uses them.

    Raises:
        CudnnError: It is not built there.
    """
    operation, dtype, x, w, y, *_, channels_last = problem
    if tensor_cores and not channels_last:
        x_bytes, y_bytes = (math.prod(tensor) * ELEMENT_BYTES[dtype] for tensor in (x, y))
        if workspace is None:
            converted = {"forward": x_bytes, "data_gradient": y_bytes, "filter_gradient": x_bytes + y_bytes}
            workspace = converted[operation]
        pointwise, grouped = all(side == 1 for side in w[2:]), w[1] != x[1]
        if (pointwise or grouped) and workspace >= min(x_bytes, y_bytes):
            workspace = None
    if workspace is None:
        raise CudnnError("a plan that is not built on a device")
    return workspace


def strides(sizes: Sequence[int], channels_last: bool) -> list[int]:
    """Of a tensor without gaps; channels are the second dimension."""
    order = [0, *range(2, len(sizes)), 1] if channels_last else range(len(sizes))
    found = [0] * len(sizes)
    step = 1
    for dimension in reversed(list(order)):
        found[dimension] = step
        step *= sizes[dimension]
    return found


def open_library(path: str, driver: str) -> Library:
    """cuDNN, after the driver's library where it needs one.

    9.28 does not plan without its engines that are compiled at run time, which need the driver; 9.24 plans
    without them, and in a hundredth of the time. A stand-in without a GPU will do, for no kernel is loaded.

    Raises:
        OSError: It cannot be loaded.
    """
    cudnn = Library(path)
    if cudnn.version >= FIRST_WITH_DRIVER and driver:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            ctypes.CDLL(driver)
    return cudnn


def main(path: str, driver: str, *before: str) -> None:
    """Answer until standard input ends."""

    def answer(**members: Any) -> None:
        print(json.dumps(members, separators=(",", ":")), flush=True)

    description = sys.stdin.readline()
    try:
        for library in before:
            with contextlib.suppress(OSError):  # cuDNN says itself what it misses
                ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        cudnn = open_library(path, driver)
        cudnn.describe(description)
        answer(version=cudnn.version)
    except (OSError, AttributeError, CudnnError) as error:
        answer(error=str(error))
        return
    for line in sys.stdin:
        try:
            answer(plans=cudnn.plans(json.loads(line)))
        except CudnnError as error:
            answer(error=str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
