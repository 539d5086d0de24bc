"""Hypothesis strategies: small training traces, well nested by construction, with everything that goes wrong.

A trace is the record of a random walk: a few threads open and close spans as a stack does, while they
allocate and free at a handful of addresses, so that reuse, missed frees and frees of unknown addresses come
by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import Any

from hypothesis import strategies as st

from xmem.testing.reference.trace import kind_of
from xmem.testing.trace_builder import Format, Numbering, TraceBuilder
from xmem.trace.trace import WITH_INPUTS

OPERATORS = (
    *WITH_INPUTS,
    "aten::linear",
    "aten::addmm",
    "aten::empty",
    "autograd::engine::evaluate_function: AddmmBackward0",
    "autograd::engine::evaluate_function: ReluBackward0",
    "AddmmBackward0",
    "ReluBackward",
    "aten::fooBackward",
    "aten::caf\u00e9 \u2603 \U0001f525",
    'aten::"quoted" \\ {[,]} \t',
    "",
)
ANNOTATIONS = (
    "Optimizer.step#Adam.step",
    "Optimizer.step#SGD.step",
    "Optimizer.zero_grad#Adam.zero_grad",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "ProfilerStep#0",
    "ProfilerStep#12",
    "my region",
)
FRAMES = (
    "nn.Module: Linear_0",
    "nn.Module: Net_0",
    "train.py(12): main",
    "/home/me/my model (1)/net.py(7): forward",
    "<frozen importlib._bootstrap>(1): _find_and_load",
    "torch/nn/modules/module.py(1775): _call_impl",
    "/usr/lib/python3.11/contextlib.py(81): inner",
    "/venv/lib/site-packages/timm/model.py(3): forward",
    "<built-in method empty of type object>",
)
NAMES = {
    "cpu_op": OPERATORS,
    "user_annotation": ANNOTATIONS,
    "python_function": FRAMES,
    "xmem_module": ("Net", "Net.body", "Net.body.0", "Autoencoder.d\u00e9codeur"),
    "xmem_line": ("train.py:12", "train.py:13", "/home/me/net.py:7"),
    "xmem_host": ("host",),
    "xmem_iteration": ("iteration 0", "iteration 1"),
}
ADDRESSES = (0x1000, 0x2000, 0x7F00_0000_1000)
SIZES = (1, 512, 4096)
DEVICES = ((0, -1), (1, 0), (1, 1))
Thread = tuple[int, int]
THREADS: tuple[Thread, ...] = ((1, 1), (1, 2), (2, 1))
ORIGIN_NS = 4_373_598_193_210_044
"""An hour of the real clock at which a double no longer holds every nanosecond of its microseconds."""

NUMBERINGS: tuple[Numbering, ...] = ("torch", "all", "none")
FORMATS: tuple[Format, ...] = ("torch213", "compact", "2021")

SKIPPED: tuple[dict[str, Any], ...] = (
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    {"ph": "s", "id": 4, "pid": 9, "tid": 9, "ts": Decimal("1.5"), "cat": "fwdbwd", "name": "fwdbwd"},
    {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 2,
        "args": {"stream": 7},
    },
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch", "ts": 1},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": Decimal("9.25")},
    {"cat": "cpu_op", "name": "no phase letter"},
)
BAD: tuple[dict[str, Any], ...] = (
    {"ph": "X", "cat": "cpu_op", "name": "aten::no_time", "pid": 1, "tid": 1, "dur": 2},
    {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 2},
    {"ph": "X", "cat": "xmem_module", "name": 7, "pid": 1, "tid": 1, "ts": 1, "dur": 2},
    {"ph": "X", "cat": "cpu_op", "name": "aten::quoted_time", "pid": 1, "tid": 1, "ts": "soon", "dur": 2},
    {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": {"Addr": 4096}},
    {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1},
    {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": {"Bytes": "512"}},
    {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "args": {"Bytes": 512}},
)
UNKNOWN_FIELDS: dict[str, Any] = {"id": 3, "bp": "e", "sf": [1, {"args": {"Bytes": 1}}], "cname": None}


@dataclass
class Walk:
    """A trace while it grows: the clock, what is open on every thread, and the events so far."""

    origin_ns: int
    clock_ns: int = 0
    open_spans: dict[Thread, list[tuple[dict[str, Any], int]]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def open(self, thread: Thread, category: str, name: str, args: dict[str, Any]) -> None:
        """Begin a span inside those that are open on its thread."""
        span = {"ph": "X", "cat": category, "name": name, **self._stamp(thread), "dur": None, "args": args}
        self.events.append(span)
        self.open_spans.setdefault(thread, []).append((span, self.clock_ns))

    def close(self, thread: Thread) -> None:
        """End the innermost open span of the thread, if there is one."""
        if self.open_spans.get(thread):
            span, begin_ns = self.open_spans[thread].pop()
            span["dur"] = _microseconds(self.clock_ns - begin_ns)

    def memory(self, thread: Thread, args: dict[str, Any]) -> None:
        """Add a memory event at the current time."""
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", **self._stamp(thread), "args": args}
        )

    def finish(self) -> None:
        """End every span that is still open."""
        for thread in self.open_spans:
            while self.open_spans[thread]:
                self.close(thread)

    def _stamp(self, thread: Thread) -> dict[str, Any]:
        return {"pid": thread[0], "tid": thread[1], "ts": _microseconds(self.origin_ns + self.clock_ns)}


def _microseconds(time_ns: int) -> Decimal:
    return Decimal(time_ns).scaleb(-3)


@st.composite
def _open_steps(draw: st.DrawFn) -> tuple[Any, ...]:
    category = draw(st.sampled_from(["cpu_op", "cpu_op", "cpu_op", "user_annotation", *NAMES]))
    args: dict[str, Any] = {}
    if category == "cpu_op" and draw(st.integers(0, 3)):
        args = {"Sequence number": draw(st.integers(0, 1)), "Fwd thread id": draw(st.integers(0, 1))}
    if category == "cpu_op" and draw(st.integers(0, 3)) == 0:
        args["Input type"] = draw(st.sampled_from([["float", "", "Scalar"], [], ["c10::Half", ["float"]]]))
    if category == "cpu_op" and draw(st.integers(0, 3)) == 0:
        args["Input Dims"] = draw(st.sampled_from([[[2, 3], []], [[[4, 1], [2]], []]]))
        args["Concrete Inputs"] = ["", "[1, 1]"]
    return "open", draw(_threads), category, draw(st.sampled_from(NAMES[category])), args


_threads = st.sampled_from([THREADS[0], THREADS[0], THREADS[0], *THREADS])
_tick = st.tuples(st.just("tick"), st.sampled_from([1, 1, 2, 1000]))
_close = st.tuples(st.just("close"), _threads)
_free = st.tuples(st.just("free"), _threads, st.integers(0, 9))
_memory = st.tuples(
    st.just("memory"),
    _threads,
    st.sampled_from(DEVICES),
    st.sampled_from([*ADDRESSES, *ADDRESSES, None]),
    st.sampled_from([*SIZES, *SIZES, *SIZES, *(-size for size in SIZES), 0]),
)


@st.composite
def _calls(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """A node of the graph, forward inside a module or backward under the engine, that allocates once."""
    thread = draw(_threads)
    forward = [("xmem_module", "Net.body"), ("cpu_op", "aten::addmm")]
    backward = [
        ("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0"),
        ("cpu_op", "AddmmBackward0"),
    ]
    args = {"Sequence number": draw(st.integers(0, 1)), "Fwd thread id": 0}
    opened = [
        ("open", thread, category, name, args if category == "cpu_op" else {})
        for category, name in draw(st.sampled_from([forward, backward]))
    ]
    return [*opened, draw(_tick), draw(_memory), draw(_tick), ("close", thread), ("close", thread)]


def _single(step: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.tuples(step).map(list)


_steps = st.one_of(
    _single(st.one_of(_open_steps(), _open_steps(), _close, _tick, _tick, _memory, _memory, _free)), _calls()
)


@st.composite
def events(draw: st.DrawFn, *, max_steps: int = 40) -> list[dict[str, Any]]:
    """Events of one trace in the order in which they begin; spans nest within their thread."""
    walk = Walk(draw(st.sampled_from([0, 1000, ORIGIN_NS])))
    allocated: list[dict[str, Any]] = []
    # The length is drawn first: lists of free length are a handful of steps long, in which nothing nests.
    length = draw(st.integers(1, max_steps))
    steps = chain.from_iterable(draw(st.lists(_steps, min_size=length, max_size=length)))
    for step, *arguments in steps:
        if step == "tick":
            walk.clock_ns += arguments[0]
        elif step == "open":
            walk.open(*arguments)
        elif step == "close":
            walk.close(*arguments)
        elif step == "memory":
            args = _memory_args(*arguments[1:])
            walk.memory(arguments[0], args)
            allocated += [args] if args["Bytes"] > 0 else []
        elif step == "free" and allocated:
            freed = allocated.pop(arguments[1] % len(allocated))
            walk.memory(arguments[0], {**freed, "Bytes": -freed["Bytes"]})
    walk.finish()
    return walk.events


def _memory_args(device: tuple[int, int], address: int | None, signed_bytes: int) -> dict[str, Any]:
    args: dict[str, Any] = {"Bytes": signed_bytes}
    if device != (0, -1):
        args |= {"Device Type": device[0], "Device Id": device[1]}
        args |= {"Total Allocated": 1 << 40, "Total Reserved": 1 << 41}
    return args if address is None else {**args, "Addr": address}


@st.composite
def crossing_events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Like `events`, but durations are arbitrary: spans cross, as annotations and Python frames really do."""
    built = draw(events())
    for event in built:
        if event["ph"] == "X":
            event["dur"] = _microseconds(draw(st.sampled_from([0, 1, 2, 3, 5, 1000, 2000])))
    return built


@st.composite
def metadata(draw: st.DrawFn, of: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The capture's metadata for these events, with rows that name blocks and rows that name none."""
    if draw(st.booleans()):
        return None
    times = [int(event["ts"] * 1000) for event in of]
    roles = ("parameter", "buffer", "gradient", "optimizer_state", "input")
    row = st.tuples(
        st.sampled_from(roles), st.sampled_from(ADDRESSES), st.sampled_from(times), st.integers(0, 1)
    )
    rows = draw(st.lists(row, max_size=6))
    return {
        "format": 1,
        "mode": "real",
        "iterations": 2,
        "tensors": {
            "role": [role for role, _, _, _ in rows],
            "name": [f"Net.tensor_{number}" for number in range(len(rows))],
            "address": [address for _, address, _, _ in rows],
            "size_bytes": [512] * len(rows),
            "time_ns": [time + late for _, _, time, late in rows],
            "dtype": ["float32"] * len(rows),
        },
    }


@st.composite
def builders(draw: st.DrawFn, of: st.SearchStrategy[list[dict[str, Any]]] | None = None) -> TraceBuilder:
    """A builder that holds one trace, its events in any order of the file."""
    built = draw(events() if of is None else of)
    builder = TraceBuilder(numbering=draw(st.sampled_from(NUMBERINGS)))
    builder.metadata = draw(metadata(built)) if built else None
    for event in built:
        builder.event(event)
    if draw(st.booleans()):
        builder.events = draw(shuffled(builder.events))
    return builder


@st.composite
def shuffled(draw: st.DrawFn, of: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events in another order of the file, except that threads appear in the same one."""
    first: dict[tuple[Any, Any], dict[str, Any]] = {}
    for event in of:
        if kind_of(event) is not None:
            first.setdefault((event["pid"], event["tid"]), event)
    rest = [event for event in of if not any(event is head for head in first.values())]
    return [*first.values(), *draw(st.permutations(rest))]


@st.composite
def with_noise(draw: st.DrawFn, of: TraceBuilder) -> TraceBuilder:
    """The same trace with skipped and bad events between its own, and with fields that nobody reads."""
    noisy = TraceBuilder(numbering="none", metadata=of.metadata)
    noise = st.lists(st.sampled_from(SKIPPED + BAD), max_size=2)
    for event in of.events:
        noisy.events += draw(noise)
        unknown = draw(st.sampled_from([{}, {}, UNKNOWN_FIELDS]))
        noisy.events.append({**unknown, **event} if draw(st.booleans()) else {**event, **unknown})
    noisy.events += draw(noise)
    return noisy


@st.composite
def texts(draw: st.DrawFn, of: TraceBuilder) -> bytes:
    """One way to write the trace: layout, escapes, order of keys, white space, duplicate keys."""
    format = draw(st.sampled_from(FORMATS if of.metadata is None else FORMATS[:2]))
    if draw(st.booleans()):
        of = TraceBuilder(metadata=of.metadata, events=[dict(reversed(event.items())) for event in of.events])
    text = of.json(format, ascii_only=draw(st.booleans()))
    text = draw(st.sampled_from([text, text.replace(".000", "")]))
    if format == "compact":
        openings = ['{"ph":', '{"ph":"B" ,"ph":', '\r\n\t{ "ts":"later","ph":']
        text = text.replace('{"ph":', draw(st.sampled_from(openings)))
    return text.encode()
