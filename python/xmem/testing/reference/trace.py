"""From profiler JSON to rows: `docs/trace_model.md`, sections 1 to 3.

Whole file in memory, one Python object per row, the standard library's JSON. Times stay decimal until they
are whole nanoseconds, so nothing is lost at 4e12 microseconds. Bytes that are not UTF-8 are read as U+FFFD.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from xmem.errors import TraceError
from xmem.records import dataclass
from xmem.trace.trace import WITH_INPUTS

Event = Mapping[str, Any]
Row = TypeVar("Row")

NONE = -1
INT64_MAX = 2**63 - 1
MAX_BLOCK_BYTES = 2**44

KINDS = (
    "operator",
    "annotation",
    "module_frame",
    "user_frame",
    "module",
    "line",
    "host",
    "iteration",
)
"""Kinds of spans; the position is the value in the column `kind`."""

_KIND_OF_CATEGORY = {
    "cpu_op": "operator",
    "Operator": "operator",
    "user_annotation": "annotation",
    "xmem_module": "module",
    "xmem_line": "line",
    "xmem_host": "host",
    "xmem_iteration": "iteration",
}
_ANNOTATIONS_OF_2021 = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")
_FRAME = re.compile(r"(?P<path>.*?\.py)\((?P<line>[0-9]+)\): .*", re.DOTALL)
_INSTALLED_FOLDERS = ("site-packages/", "dist-packages/", "lib/python3")
_INSTALLED_NAMES = frozenset(
    """
    abc ast asyncio bisect codecs collections concurrent contextlib copy copyreg ctypes dataclasses
    datetime decimal enum functools genericpath gzip hashlib heapq importlib inspect io json linecache
    locale logging multiprocessing numbers operator os pathlib pickle platform posixpath pprint queue
    random re reprlib runpy selectors shutil signal site socket sre_compile sre_parse ssl statistics
    string subprocess tempfile textwrap threading tokenize traceback types typing unittest urllib uuid
    warnings weakref zipfile accelerate apex datasets deepspeed diffusers einops filelock fsspec
    huggingface_hub ignite lightning lightning_fabric matplotlib numpy packaging pandas peft PIL
    pytorch_lightning safetensors scipy sklearn sympy tensorboard timm tokenizers torch torchaudio
    torchdata torchmetrics torchvision tqdm transformers triton trl wandb xmem yaml
    """.split()  # noqa: SIM905 (prose wraps better)
)
MODULE_FRAME = "nn.Module: "


@dataclass(frozen=True)
class Span:
    """A row of the EventTable."""

    kind: str
    name: str
    thread: int
    begin_ns: int
    end_ns: int
    sequence_number: int = NONE
    forward_thread: int = NONE
    input_types: Any = None
    inputs: Any = None
    row: int = NONE

    def holds(self, time_ns: int) -> bool:
        """Return whether the half-open interval contains the time."""
        return self.begin_ns <= time_ns < self.end_ns


@dataclass(frozen=True)
class MemoryEvent:
    """A row of the MemoryTable."""

    time_ns: int
    address: int
    bytes: int
    device_type: int
    device_index: int
    thread: int
    total_allocated: int
    total_reserved: int

    @property
    def device(self) -> tuple[int, int]:
        """Type and index: pairing never crosses devices."""
        return self.device_type, self.device_index


@dataclass
class ReferenceTrace:
    """The content of a trace: rows in table order, counts of events and of problems, the capture's
    metadata."""

    spans: list[Span]
    memory: list[MemoryEvent]
    counts: Counter[str] = field(default_factory=Counter)
    diagnostics: Counter[str] = field(default_factory=Counter)
    metadata: dict[str, Any] | None = None

    @cached_property
    def has_engine(self) -> bool:
        """Whether spans of autograd's engine are in the trace (torch from 1.10)."""
        return bool(self.of_kind("operator", "autograd::engine::evaluate_function"))

    def is_engine_thread(self, thread: int) -> bool:
        """Return whether a thread is autograd's own, in a trace without spans of its engine."""
        return not self.has_engine and thread in self._threads_of_nodes

    @cached_property
    def _threads_of_nodes(self) -> set[int]:
        first: dict[int, Span] = {}
        for span in self.of_kind("operator"):
            first.setdefault(span.thread, span)
        return {thread for thread, span in first.items() if is_node(span.name)}

    def of_kind(self, kind: str, prefix: str = "") -> list[Span]:
        """Return every span of the kind whose name starts with ``prefix``, in table order."""
        return [span for span in self.spans if span.kind == kind and span.name.startswith(prefix)]


def is_node(name: str) -> bool:
    """Return whether an operator's name is that of a node of autograd's graph."""
    is_backward = name.rstrip("0123456789").endswith("Backward") and not name.startswith("aten::")
    return is_backward or name.startswith("torch::autograd::")


def read(source: str | os.PathLike[str] | bytes) -> ReferenceTrace:
    """Read a trace from a path or from its bytes; gzip is recognised by content.

    Raises:
        TraceError: The text is not JSON, or holds no array of events.
        OSError: The file cannot be read.
    """
    document = _load(source)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise TraceError("no array traceEvents in this JSON. Give a trace of torch.profiler.", _path(source))
    metadata = document.get("xmem") if isinstance(document, dict) else None

    trace = ReferenceTrace([], [], metadata=metadata if isinstance(metadata, dict) else None)
    threads: dict[Any, int] = {}
    spans: list[tuple[Event, Span]] = []
    memory: list[tuple[Event, MemoryEvent]] = []
    for event in events:
        kind = kind_of(event)
        if kind is None:
            trace.counts[_skipped_as(event)] += 1
        elif not _is_whole(event, kind):
            trace.diagnostics["bad_event"] += 1
        else:
            trace.counts[kind] += 1
            thread = threads.setdefault(_thread_key(event), len(threads))
            if kind == "memory":
                memory.append((event, _memory_event(event, thread)))
            else:
                spans.append((event, _span(event, kind, thread)))
                trace.diagnostics.update(["bad_duration"] if _duration_ns(event) is None else [])

    table = sorted(_in_file_order(spans), key=lambda span: (span.thread, span.begin_ns, -span.end_ns))
    trace.spans = [replace(span, row=row) for row, span in enumerate(table)]
    trace.memory = sorted(_in_file_order(memory), key=lambda row: row.time_ns)
    return trace


def kind_of(event: object) -> str | None:
    """Return the kind of an event: one of KINDS, `memory`, `bad` if it is not an object, None if it is
    skipped."""
    if not isinstance(event, dict):
        return "bad"
    name, category = event.get("name"), event.get("cat")
    if event.get("ph") == "i" and name == "[memory]":
        return "memory"
    if event.get("ph") != "X" or not isinstance(category, str):
        return None
    if category == "python_function":
        return _kind_of_frame(name) if isinstance(name, str) else None
    if category == "Operator" and isinstance(name, str) and name.startswith(_ANNOTATIONS_OF_2021):
        return "annotation"
    return _KIND_OF_CATEGORY.get(category)


def _kind_of_frame(name: str) -> str | None:
    if name.startswith(MODULE_FRAME):
        return "module_frame"
    return None if frame_line(name) is None else "user_frame"


def frame_line(name: str) -> str | None:
    """Return `PATH:LINE` of a frame of the user's own code, named `PATH(LINE): FUNCTION`; None for other
    names."""
    match = _FRAME.fullmatch(name)
    if match is None:
        return None
    path = match["path"]
    first = path.partition("/")[0].removesuffix(".py")
    if path.startswith("<") or first in _INSTALLED_NAMES or any(part in path for part in _INSTALLED_FOLDERS):
        return None
    return f"{path}:{match['line']}"


def _skipped_as(event: Event) -> str:
    """Return the name under which a skipped event is counted: its category, or else its phase letter."""
    named = [event[key] for key in ("cat", "ph") if isinstance(event.get(key), str)]
    return named[0] if named else ""


def _is_whole(event: Event, kind: str) -> bool:
    """Return whether the fields that a row needs are there and of the right type."""
    if kind == "bad" or _nanoseconds(event.get("ts")) is None:
        return False
    if kind == "memory":
        size = _args(event).get("Bytes")
        return type(size) is int and -MAX_BLOCK_BYTES <= size <= MAX_BLOCK_BYTES
    return isinstance(event.get("name"), str)


def _span(event: Event, kind: str, thread: int) -> Span:
    begin = _nanoseconds(event["ts"])
    assert begin is not None
    args = _args(event)
    return Span(
        kind=kind,
        name=event["name"],
        thread=thread,
        begin_ns=begin,
        end_ns=begin + (_duration_ns(event) or 0),
        sequence_number=_integer(args, "Sequence number", NONE),
        forward_thread=_integer(args, "Fwd thread id", NONE),
        input_types=args.get("Input type"),
        inputs=_inputs(event["name"], args),
    )


def _inputs(name: str, args: Event) -> Any:
    """Return the shapes, strides and plain values given to an operator, if its inputs are kept."""
    if name not in WITH_INPUTS:
        return None
    keys = ("Input Dims", "Input Strides", "Concrete Inputs")
    return [args.get(key) for key in keys] if any(key in args for key in keys) else None


def _memory_event(event: Event, thread: int) -> MemoryEvent:
    time = _nanoseconds(event["ts"])
    assert time is not None
    args = _args(event)
    return MemoryEvent(
        time_ns=time,
        address=_address(args.get("Addr")),
        bytes=args["Bytes"],
        device_type=_integer(args, "Device Type", 0, bits=8),
        device_index=_integer(args, "Device Id", NONE, bits=32),
        thread=thread,
        total_allocated=_integer(args, "Total Allocated", NONE),
        total_reserved=_integer(args, "Total Reserved", NONE),
    )


def _in_file_order(kept: list[tuple[Event, Row]]) -> list[Row]:
    """Return the rows of one table by `Ev Idx` if every event has one, or else in the order of the array."""
    if all(_is_integer(_args(event).get("Ev Idx")) for event, _ in kept):
        kept = sorted(kept, key=lambda pair: _args(pair[0])["Ev Idx"])
    return [row for _, row in kept]


def _thread_key(event: Event) -> tuple[str, str]:
    """Return `pid` and `tid` as text: some writers quote them, and 7 and "7" are one thread."""
    return str(event.get("pid", "")), str(event.get("tid", ""))


def _args(event: Event) -> Event:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _is_integer(value: Any, bits: int = 64) -> bool:
    return type(value) is int and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def _integer(args: Event, key: str, default: int, bits: int = 64) -> int:
    return int(args[key]) if _is_integer(args.get(key), bits) else default


def _address(value: Any) -> int:
    """Return the address; from 2^63 on it wraps, as a signed number of 64 bits does."""
    if type(value) is int and INT64_MAX < value < 2**64:
        return value - 2**64
    return int(value) if _is_integer(value) else NONE


def _nanoseconds(microseconds: Any) -> int | None:
    """Return whole nanoseconds of decimal microseconds, further digits cut off; None if it is not an
    int64."""
    if type(microseconds) not in (int, Decimal) or abs(microseconds) > INT64_MAX // 1000:
        return None
    return int(microseconds * 1000)


def _duration_ns(event: Event) -> int | None:
    """Return the duration; None if it is missing, negative or not a number."""
    duration = _nanoseconds(event.get("dur"))
    return None if duration is None or duration < 0 else duration


def _load(source: str | os.PathLike[str] | bytes) -> Any:
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    try:
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        text = data.decode("utf-8", errors="replace")
        # strict=False: raw control characters in names are read as they are.
        return json.loads(text, parse_float=Decimal, strict=False, object_pairs_hook=_first_of_each_key)
    except json.JSONDecodeError as error:
        offset = len(error.doc[: error.pos].encode())
        raise TraceError(f"not JSON ({error.msg}). Record the trace again.", _path(source), offset) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"not a whole gzip file ({error}). Copy it again.", _path(source)) from error


def _first_of_each_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def _path(source: str | os.PathLike[str] | bytes) -> str | None:
    return None if isinstance(source, bytes) else os.fspath(source)
