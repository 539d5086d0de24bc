"""Traces written by hand: a fluent builder that writes what torch.profiler would have written.

Example:
    >>> trace = (
    ...     TraceBuilder()
    ...     .iteration(0, 0, 100)
    ...     .operator("aten::relu", 10, 20)
    ...     .alloc(0x1000, 512, at_us=12)
    ...     .free(0x1000, at_us=50)
    ... )
    >>> trace.write("tiny.json.gz")  # doctest: +SKIP
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Self

Microseconds = int | float | str | Decimal
"""A time as the profiler writes it. Use int, str or Decimal for exact nanoseconds at real magnitudes."""

Format = Literal["torch213", "compact", "2021"]
"""Pretty-printed as torch 2.13 does; the same without white space; a bare list in the words of 2021."""

Numbering = Literal["torch", "all", "none"]
"""Which events get an `Ev Idx`: those that torch itself writes, every one, or none."""

_CAPTURE_CATEGORIES = ("xmem_module", "xmem_line", "xmem_host", "xmem_iteration")


@dataclass
class TraceBuilder:
    """Collects events in the order of the calls, which is also their order in the file.

    Times are microseconds on the trace's clock and are written with three decimals, as whole nanoseconds.
    Events go to the current thread; `on` chooses another one.

    Attributes:
        numbering: Which events get an `Ev Idx`.
        pid: Process of the events that follow.
        tid: Thread of the events that follow.
        events: Events built so far, as decoded JSON except for `ts` and `dur`, which are `Decimal`.
        metadata: The `xmem` object, None for a foreign trace.
    """

    numbering: Numbering = "torch"
    pid: int | str = 1000
    tid: int | str = 1000
    events: list[dict[str, Any]] = field(default_factory=list)
    metadata: dict[str, Any] | None = None
    _size_at: dict[tuple[int, int, int | None], int] = field(default_factory=dict)
    _event_index: int = 0
    _external_id: int = 0
    _python_id: int = 0

    def on(self, tid: int | str, pid: int | str | None = None) -> Self:
        """Put the events that follow on another thread, and optionally in another process."""
        self.tid = tid
        self.pid = self.pid if pid is None else pid
        return self

    # Spans that torch writes.

    def operator(
        self,
        name: str,
        begin_us: Microseconds,
        end_us: Microseconds,
        *,
        sequence_number: int | None = None,
        forward_thread: int = 0,
        input_types: Sequence[Any] | None = None,
        input_dims: Sequence[Any] | None = None,
        input_strides: Sequence[Any] | None = None,
        concrete_inputs: Sequence[str] | None = None,
        **args: Any,
    ) -> Self:
        """Add an operator; further `args` are written as given."""
        recorded: dict[str, Any] = {"External id": self._next_external_id()}
        if sequence_number is not None:
            recorded |= {"Sequence number": sequence_number, "Fwd thread id": forward_thread}
        recorded |= {"Record function id": 0}
        if input_types is not None:
            recorded |= {"Input type": list(input_types)}
        if input_dims is not None:
            recorded |= {"Input Dims": list(input_dims)}
        if input_strides is not None:
            recorded |= {"Input Strides": list(input_strides)}
        if concrete_inputs is not None:
            recorded |= {"Concrete Inputs": list(concrete_inputs)}
        return self.span("cpu_op", name, begin_us, end_us, {**recorded, **args})

    def backward(
        self, node: str, begin_us: Microseconds, end_us: Microseconds, *, sequence_number: int
    ) -> Self:
        """Add a node of the backward pass: the engine's span, and `node` inside it, on the same interval."""
        name = f"autograd::engine::evaluate_function: {node}"
        self.operator(name, begin_us, end_us, sequence_number=sequence_number, forward_thread=1)
        return self.operator(node, begin_us, end_us, sequence_number=sequence_number, forward_thread=1)

    def annotation(self, name: str, begin_us: Microseconds, end_us: Microseconds) -> Self:
        """Add a `user_annotation`, such as `ProfilerStep#0` or `Optimizer.step#Adam.step`."""
        recorded = {"External id": self._next_external_id(), "Record function id": 0}
        return self.span("user_annotation", name, begin_us, end_us, recorded)

    def python_function(self, name: str, begin_us: Microseconds, end_us: Microseconds) -> Self:
        """Add a Python frame by its full name."""
        self._python_id += 1
        return self.span(
            "python_function",
            name,
            begin_us,
            end_us,
            {"Python parent id": None, "Python id": self._python_id},
        )

    def module_frame(self, name: str, begin_us: Microseconds, end_us: Microseconds) -> Self:
        """Add the frame of a module's call; `name` as torch numbers it: `Linear_0`."""
        return self.python_function(f"nn.Module: {name}", begin_us, end_us)

    def user_frame(
        self, path: str, line: int, function: str, begin_us: Microseconds, end_us: Microseconds
    ) -> Self:
        """Add a frame of the user's code."""
        return self.python_function(f"{path}({line}): {function}", begin_us, end_us)

    # Spans that our capture writes.

    def module(self, path: str, begin_us: Microseconds, end_us: Microseconds) -> Self:
        """Add a module's call by its dotted path: `GPT.transformer.h.3.attn`."""
        return self.span("xmem_module", path, begin_us, end_us)

    def line(self, path: str, line: int, begin_us: Microseconds, end_us: Microseconds) -> Self:
        """Add the execution of one source line."""
        return self.span("xmem_line", f"{path}:{line}", begin_us, end_us)

    def host(self, begin_us: Microseconds, end_us: Microseconds) -> Self:
        """Mark a time in which the thread allocates host memory only."""
        return self.span("xmem_host", "host", begin_us, end_us)

    def iteration(self, number: int, begin_us: Microseconds, end_us: Microseconds) -> Self:
        """Mark one iteration of the training loop."""
        return self.span("xmem_iteration", f"iteration {number}", begin_us, end_us)

    # Memory.

    def alloc(
        self,
        address: int | None,
        size: int,
        at_us: Microseconds,
        *,
        device_type: int = 0,
        device_index: int = -1,
    ) -> Self:
        """Add an allocation of `size` bytes; `address` None leaves `Addr` out."""
        self._size_at[device_type, device_index, address] = size
        return self.memory(size, at_us, address=address, device_type=device_type, device_index=device_index)

    def free(
        self,
        address: int | None,
        at_us: Microseconds,
        *,
        size: int | None = None,
        device_type: int = 0,
        device_index: int = -1,
    ) -> Self:
        """Add a free, by default of the size last allocated at the address.

        Raises:
            KeyError: No size is given, and nothing was allocated there.
        """
        if size is None:
            size = self._size_at[device_type, device_index, address]
        return self.memory(-size, at_us, address=address, device_type=device_type, device_index=device_index)

    def memory(
        self,
        signed_bytes: int,
        at_us: Microseconds,
        *,
        address: int | None = None,
        device_type: int = 0,
        device_index: int = -1,
        total_allocated: int = 0,
        total_reserved: int = 0,
    ) -> Self:
        """Add a `[memory]` instant with any signed size, also zero."""
        args = {
            "Total Reserved": total_reserved,
            "Total Allocated": total_allocated,
            "Bytes": signed_bytes,
            "Device Id": device_index,
            "Device Type": device_type,
        }
        if address is not None:
            args["Addr"] = address
        return self.event(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": self.pid,
                "tid": self.tid,
                "ts": _decimal(at_us),
                "args": {**args, "finished": False},
            }
        )

    # Anything else.

    def span(
        self,
        category: str,
        name: str,
        begin_us: Microseconds,
        end_us: Microseconds,
        args: Mapping[str, Any] | None = None,
    ) -> Self:
        """Add a complete event (`ph` X) of any category."""
        begin = _decimal(begin_us)
        return self.event(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": self.pid,
                "tid": self.tid,
                "ts": begin,
                "dur": _decimal(end_us) - begin,
                "args": dict(args or {}),
            }
        )

    def event(self, event: Mapping[str, Any]) -> Self:
        """Add an event as it is, except for the `Ev Idx` that `numbering` asks for."""
        event = dict(event)
        by_capture = event.get("cat") in _CAPTURE_CATEGORIES
        if self.numbering == "all" or (self.numbering == "torch" and not by_capture):
            event["args"] = {**event.get("args", {}), "Ev Idx": self._event_index}
            self._event_index += 1
        self.events.append(event)
        return self

    def with_metadata(self, **entries: Any) -> Self:
        """Set entries of the `xmem` object, as the capture writes them."""
        self.metadata = {**(self.metadata or {"format": 1}), **entries}
        return self

    def tensor(
        self,
        role: str,
        name: str,
        address: int,
        size: int,
        at_us: Microseconds,
        *,
        shape: Sequence[int] | None = None,
        group: int = -1,
    ) -> Self:
        """Name the block that is live at the address at that time, as the capture does; without a shape, as a
        vector."""
        row: dict[str, Any] = {
            "role": role,
            "name": name,
            "address": address,
            "size_bytes": size,
            "time_ns": nanoseconds(at_us),
            "dtype": "float32",
            "shape": [size // 4] if shape is None else list(shape),
            "group": group,
        }
        self.with_metadata()
        assert self.metadata is not None
        tensors = self.metadata.setdefault("tensors", {column: [] for column in row})
        for column, value in row.items():
            tensors[column].append(value)
        return self

    def _next_external_id(self) -> int:
        self._external_id += 1
        return self._external_id

    # Writing.

    def json(self, format: Format = "torch213", *, ascii_only: bool = False) -> str:
        """The text of the file.

        Args:
            format: Shape of the file.
            ascii_only: Write other characters as escapes, instead of as they are.

        Raises:
            ValueError: Metadata cannot stand in a bare list.
        """
        if format == "2021":
            return self._json_of_2021(ascii_only)
        header: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
        header |= {} if self.metadata is None else {"xmem": self.metadata}
        header |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": 0}
        if format == "compact":
            dump = _dump(ascii_only, compact=True)
            top = "".join(f"{dump(key)}:{dump(value)}," for key, value in header.items())
            return "{" + top + '"traceEvents":[' + ",".join(map(dump, self.events)) + "]}"
        dump = _dump(ascii_only)
        top = "".join(f"    {dump(key)}: {dump(value)},\n" for key, value in header.items())
        events = ",".join(pretty_event(event, dump) for event in self.events)
        return f' {{\n{top}    "traceEvents": [\n    {events}\n  ],"traceName": "trace.json" }}'

    def _json_of_2021(self, ascii_only: bool) -> str:
        if self.metadata is not None:
            raise ValueError("a bare list of events has no place for metadata: leave it out")
        dump = _dump(ascii_only)
        return "[\n" + ",".join(f"\n  {dump(_in_words_of_2021(event))}" for event in self.events) + "\n]\n"

    def bytes(self, format: Format = "torch213", *, ascii_only: bool = False) -> bytes:
        """Return the text of the file in UTF-8."""
        return self.json(format, ascii_only=ascii_only).encode()

    def write(
        self, path: str | os.PathLike[str], format: Format = "torch213", *, ascii_only: bool = False
    ) -> Path:
        """Write the file, compressed if the name ends in `.gz`; returns its path."""
        path = Path(path)
        data = self.bytes(format, ascii_only=ascii_only)
        # No time of writing in the gzip header: same trace, same bytes.
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path


def nanoseconds(time_us: Microseconds) -> int:
    """Return a time in microseconds as whole nanoseconds."""
    return int(_decimal(time_us) * 1000)


def _decimal(time_us: Microseconds) -> Decimal:
    return Decimal(str(time_us)).quantize(Decimal("0.001"))


def _dump(ascii_only: bool, *, compact: bool = False) -> Callable[[object], str]:
    """Return a JSON writer that writes `Decimal` digit by digit, which the standard one cannot."""
    separators = (",", ":") if compact else (", ", ": ")

    def dump(value: object) -> str:
        if isinstance(value, Decimal):
            return str(value)
        if isinstance(value, dict):
            members = (f"{dump(key)}{separators[1]}{dump(member)}" for key, member in value.items())
            return "{" + separators[0].join(members) + "}"
        return json.dumps(value, ensure_ascii=ascii_only, separators=separators)

    return dump


def pretty_event(event: Mapping[str, Any], dump: Callable[[object], str]) -> str:
    """Lay out one event as torch 2.13 does: one field per line, all of `args` on one, gaps included."""
    fields = [f"    {dump(key)}: {dump(value)}" for key, value in event.items() if key != "args"]
    if event.get("ph") == "i":
        fields[0] += ",\n    "
        head = fields[0] + "\n" + ",\n".join(fields[1:])
    else:
        head = ",\n".join(fields)
    if "args" not in event:
        return f"\n  {{\n{head}\n    \n  }}"
    args = dump(event["args"])[1:-1]
    if "External id" in event["args"]:
        args = args.replace(", ", ",", 1)
    return f'\n  {{\n{head}\n    ,\n    "args": {{\n      {args}\n    }}\n  }}'


def _in_words_of_2021(event: Mapping[str, Any]) -> dict[str, Any]:
    """Write an event as in 2021: operators and annotations share a category, memory events have neither
    category, `Addr` nor totals."""
    unknown = {"Ev Idx"}
    event = dict(event)
    if event.get("name") == "[memory]":
        event.pop("cat", None)
        unknown |= {"Addr", "Total Allocated", "Total Reserved", "finished"}
    elif event.get("cat") in ("cpu_op", "user_annotation"):
        event["cat"] = "Operator"
    if "args" in event:
        event["args"] = {key: value for key, value in event["args"].items() if key not in unknown}
    return event
