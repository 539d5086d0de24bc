"""Launches of a profiler trace of a GPU: its kernel events, with the operators that launched them.

Kernel events are those of libkineto (``CuptiActivity.cpp``): ``shared memory`` is static and dynamic
together.
Kernels of libraries are there too, like all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from xmem.errors import TraceError
from xmem.files.documents import parse_json
from xmem.files.sources import TraceSource, open_source
from xmem.occupancy.launches import NONE, Known, Launches
from xmem.records import dataclass

_OPERATORS = ("cpu_op", "Operator")
_IDENTITIES = ("External id", "external id")


@dataclass(frozen=True)
class ProfiledGpu:
    """The GPU of a trace, as far as it says.

    Attributes:
        name: As CUDA gives it; empty = unknown.
        compute_capability: Major and minor; None = unknown.
        multiprocessors: -1 = unknown.
    """

    name: str
    compute_capability: tuple[int, int] | None
    multiprocessors: int


def profiled_launches(source: TraceSource) -> tuple[Launches, ProfiledGpu]:
    """Return the kernels of a profiler trace in the order in which they ran, and the GPU they ran on.

    Args:
        source: As ``xmem.trace.trace.read_trace`` takes it. The whole text is held in memory.

    Raises:
        TraceError: The source cannot be read, or has no kernel of an NVIDIA GPU with its registers.
    """
    with open_source(source) as opened:
        name = opened.name
        text = b"".join(opened.pieces())
    try:
        document = parse_json(text.decode("utf-8", errors="replace"))
    except ValueError as error:
        raise TraceError(f"this is not JSON ({error}); pass a profiler trace", name) from None
    header = document if isinstance(document, dict) else {}
    listed = header.get("traceEvents") if header else document
    events = [event for event in listed if _is_event(event)] if isinstance(listed, list) else []
    kernels = sorted(filter(_is_kernel, events), key=lambda event: float(event["ts"]))
    if not kernels:
        raise TraceError(
            "the trace has no kernels of an NVIDIA GPU; profile with ProfilerActivity.CUDA, "
            "or run the script with 'xmem-fast occupancy -- COMMAND'",
            name,
        )
    device = kernels[0]["args"].get("device", 0)
    return _columns(kernels, _operator_names(events)), _gpu(header.get("deviceProperties"), device)


def _is_event(event: object) -> bool:
    return isinstance(event, dict) and isinstance(event.get("args", {}), dict)


def _is_kernel(event: Mapping[str, Any]) -> bool:
    of = event.get("args", {})
    is_shape = all(
        isinstance(of.get(key), list)
        and len(of[key]) == 3
        and all(type(size) is int and 0 <= size < 1 << 31 for size in of[key])
        for key in ("grid", "block")
    )
    return (
        str(event.get("cat", "")).lower() == "kernel"
        and is_shape
        and all(type(of.get(key)) is int for key in ("registers per thread", "shared memory"))
        and all(isinstance(event.get(key), int | float) for key in ("ts", "dur"))
    )


def _operator_names(events: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return the names of the operators by the number that their kernels carry."""
    names = {}
    for event in events:
        if event.get("cat") in _OPERATORS:
            number = _identity(event)
            if number is not None:
                names[number] = str(event.get("name", ""))
    return names


def _identity(event: Mapping[str, Any]) -> int | None:
    of = event.get("args", {})
    return next((int(of[key]) for key in _IDENTITIES if type(of.get(key)) is int), None)


def _gpu(properties: object, device: object) -> ProfiledGpu:
    rows = [row for row in properties if isinstance(row, dict)] if isinstance(properties, list) else []
    row = next((row for row in rows if row.get("id") == device), rows[0] if rows else {})
    major, minor, count = (row.get(key) for key in ("computeMajor", "computeMinor", "numSms"))
    capability = (major, minor) if type(major) is int and type(minor) is int else None
    return ProfiledGpu(str(row.get("name", "")), capability, count if type(count) is int else NONE)


def _columns(kernels: list[dict[str, Any]], operators: Mapping[int, str]) -> Launches:
    texts: dict[str, int] = {}
    streams: dict[object, int] = {}

    def text(of: str) -> int:
        return texts.setdefault(of, len(texts)) if of else NONE

    def column(values: Iterable[int], kind: type[np.signedinteger[Any]]) -> np.ndarray[Any, Any]:
        return np.fromiter(values, kind, len(kernels))

    def args(key: str) -> Iterable[int]:
        return (int(kernel["args"][key]) for kernel in kernels)

    nothing = np.full(len(kernels), NONE, np.int32)
    name = column((text(str(kernel["name"])) for kernel in kernels), np.int32)
    operator = column((text(operators.get(_identity(each) or NONE, "")) for each in kernels), np.int32)
    return Launches(
        strings=tuple(texts),
        name=name,
        grid=np.array([kernel["args"]["grid"] for kernel in kernels], np.int32),
        block=np.array([kernel["args"]["block"] for kernel in kernels], np.int32),
        dynamic_shared=column(args("shared memory"), np.int32),
        static_shared=np.zeros(len(kernels), np.int32),
        registers=column(args("registers per thread"), np.int32),
        cluster=np.zeros(len(kernels), np.int32),
        stream=column(
            (streams.setdefault(str(each["args"].get("stream")), len(streams)) for each in kernels), np.int32
        ),
        operator=operator,
        module=nothing.copy(),
        begin_ns=column((round(float(kernel["ts"]) * 1000) for kernel in kernels), np.int64),
        duration_ns=column((round(float(kernel["dur"]) * 1000) for kernel in kernels), np.int64),
        known=np.full(len(kernels), Known.EXACT, np.uint8),
        library_call=nothing,
    )
