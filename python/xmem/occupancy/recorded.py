"""Launches of our own captures: the phantom's log, with the operator and the module that launched each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmem.errors import TraceError
from xmem.occupancy.launches import NONE, Known, Launches, LibraryCalls
from xmem.occupancy.spans import Nesting, nesting_of
from xmem.records import dataclass
from xmem.trace.notes import LaunchNotes
from xmem.trace.trace import SPAN_KINDS, EventTable, Trace

_DTYPES = {
    0: "float32",
    1: "float64",
    2: "float16",
    3: "int8",
    4: "complex64",
    5: "complex128",
    8: "uint8",
} | {
    10: "int32",
    14: "bfloat16",
    28: "float8_e4m3fn",
    29: "float8_e5m2",
}
"""By ``cudaDataType_t``."""
_CUDNN_DTYPES = {0: "float32", 1: "float64", 2: "float16", 3: "int8", 4: "int32", 9: "bfloat16"} | {
    12: "float8_e4m3fn",
    13: "float8_e5m2",
}
"""By ``cudnnDataType_t``."""
_ARITHMETIC = {64: "float16", 65: "float16", 68: "float32", 69: "float32", 70: "float64", 71: "float64"} | {
    72: "int32",
    73: "int32",
    74: "float16",
    75: "bfloat16",
    77: "tfloat32",
}
"""By ``cublasComputeType_t``."""
_TF32_MATH = 3
_FAMILIES = (
    ("Normalization", "normalization"),
    ("NormForward", "normalization"),
    ("RNN", "recurrent"),
    ("gemv", "gemv"),
    ("gemm", "gemm"),
)
"""Of functions that say no more than their name."""
_RECURRENT = ("cell", "hidden", "layers", "directions", "algorithm", "math")


def launches_of(trace: Trace) -> Launches:
    """Return what a capture wrote down of its launches.

    Raises:
        TraceError: The capture wrote none down.
    """
    notes = trace.notes.launches
    if notes is None:
        raise TraceError(
            "the trace does not say what was launched; capture with 'xmem-fast occupancy -- COMMAND'",
            trace.path,
        )
    strings = _Strings()
    table = _read_table(notes.table, strings)
    what = np.array(notes.what, np.int64)
    time_ns = np.array(notes.time_ns, np.int64)
    operator, module = _launched_by(trace, notes, time_ns, strings)
    return Launches(
        name=table.name[what],
        grid=table.grid[what],
        block=table.block[what],
        dynamic_shared=table.dynamic_shared[what],
        static_shared=table.static_shared[what],
        registers=table.registers[what],
        cluster=table.cluster[what],
        stream=np.array(notes.stream, np.int32),
        operator=operator,
        module=module,
        begin_ns=time_ns,
        duration_ns=np.full(len(what), NONE, np.int64),
        known=table.known[what],
        library_call=table.library_call[what],
        library_calls=table.calls,
        strings=strings.all(),
    )


def of_last_iteration(trace: Trace, launches: Launches) -> Launches:
    """Return the launches of the last iteration that was recorded; all of them where there is none."""
    events = trace.events
    rows = np.flatnonzero(events.kind == SPAN_KINDS.index("iteration"))
    if not len(rows):
        return launches
    last = rows[int(events.end_ns[rows].argmax())]
    begin, end = events.begin_ns[last], events.end_ns[last]
    return launches.rows((launches.begin_ns >= begin) & (launches.begin_ns < end))


class _Strings:
    """Texts, each once."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._row.setdefault(text, len(self._row)) if text else NONE

    def all(self) -> tuple[str, ...]:
        return tuple(self._row)


@dataclass(frozen=True)
class _Table:
    """The distinct launches, as columns."""

    name: NDArray[np.int32]
    grid: NDArray[np.int32]
    block: NDArray[np.int32]
    dynamic_shared: NDArray[np.int32]
    static_shared: NDArray[np.int32]
    registers: NDArray[np.int32]
    cluster: NDArray[np.int32]
    known: NDArray[np.uint8]
    library_call: NDArray[np.int32]
    calls: LibraryCalls


def _read_table(table: Sequence[Sequence[Any]], strings: _Strings) -> _Table:
    numbers = np.full((len(table), 11), NONE, np.int32)
    library_call = np.full(len(table), NONE, np.int32)
    calls = _Calls(strings)
    for row, launch in enumerate(table):
        if launch[0] == 1:
            library_call[row] = calls.add(launch[1], launch[2])
        else:
            numbers[row] = launch[2:]
    is_call = library_call != NONE
    registers = numbers[:, 8]
    return _Table(
        name=np.fromiter((strings(launch[1]) for launch in table), np.int32, len(table)),
        grid=numbers[:, 0:3],
        block=numbers[:, 3:6],
        dynamic_shared=numbers[:, 6],
        static_shared=numbers[:, 7],
        registers=registers,
        cluster=np.where(is_call, 0, numbers[:, 10]).astype(np.int32),
        known=np.where(registers == NONE, Known.UNKNOWN, Known.EXACT).astype(np.uint8),
        library_call=library_call,
        calls=calls.columns(),
    )


@dataclass
class _Calls:
    """Library calls as they are read."""

    strings: _Strings
    function: list[int] = field(default_factory=list)
    family: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int, int, int]] = field(default_factory=list)
    layout: list[int] = field(default_factory=list)
    dtypes: list[tuple[int, int, int, int]] = field(default_factory=list)
    problem: list[int] = field(default_factory=list)

    def add(self, function: str, problem: Mapping[str, Any]) -> int:
        self.function.append(self.strings(function))
        if problem.get("family") in ("gemm", "gemv"):
            details = self._add_product(problem)
        else:
            details = self._add_other(function, problem)
        self.problem.append(self.strings(json.dumps(details)) if details else NONE)
        return len(self.function) - 1

    def _add_product(self, problem: Mapping[str, Any]) -> dict[str, Any]:
        self.family.append(self.strings(str(problem["family"])))
        self.sizes.append(tuple(_whole(problem.get(key)) for key in ("m", "n", "k", "batch")))  # type: ignore[arg-type]
        self.layout.append(self.strings(str(problem.get("layout", ""))))
        a, b, c = (_DTYPES.get(_whole(problem.get(key)), "") for key in ("a", "b", "c"))
        noted = _whole(problem.get("arithmetic"))
        arithmetic = _ARITHMETIC.get(noted) or (a if noted == NONE else _DTYPES.get(noted, ""))
        if arithmetic == "float32" and a == "float32" and problem.get("math_mode") == _TF32_MATH:
            arithmetic = "tfloat32"
        self.dtypes.append(tuple(map(self.strings, (a, b, c, arithmetic))))  # type: ignore[arg-type]
        details: dict[str, Any] = {
            "leading_dimensions": [_whole(problem.get(key)) for key in ("lda", "ldb", "ldc")]
        }
        if NONE in details["leading_dimensions"]:
            del details["leading_dimensions"]
        return details | {key: problem[key] for key in ("epilogue",) if key in problem}

    def _add_other(self, function: str, problem: Mapping[str, Any]) -> dict[str, Any]:
        first = _first_operation(problem)
        operations = [str(row.get("operation", "")) for row in _operations(problem)]
        family = _attention(operations) or str(
            first.get("operation") or next((of for part, of in _FAMILIES if part in function), "")
        )
        x, w, y = (_tensor(first, keys) for keys in (("x", "q", "a"), ("w", "k", "b"), ("y", "o", "c")))
        convolution = _tensor(first, ("convolution",))
        self.family.append(self.strings(family))
        self.sizes.append((NONE, NONE, NONE, NONE))
        self.layout.append(self.strings(_layout(x)))
        dtypes = [
            _CUDNN_DTYPES.get(_whole(of), "") for of in (x.get("dtype"), w.get("dtype"), y.get("dtype"))
        ]
        dtypes.append(_CUDNN_DTYPES.get(_whole(convolution.get("arithmetic")), ""))
        self.dtypes.append(tuple(map(self.strings, dtypes)))  # type: ignore[arg-type]
        if "attention" in family:
            shapes = {"query": x, "key": w, "output": y}
        else:
            shapes = {"input": x, "filter": w, "output": y}
        details = {key: tensor["shape"] for key, tensor in shapes.items() if "shape" in tensor}
        details |= {key: convolution[key] for key in ("stride", "padding", "dilation") if key in convolution}
        details |= {key: first[key] for key in (*_RECURRENT, "mode") if type(first.get(key)) is int}
        if _attention(operations) and isinstance(keys := details.get("key"), list):
            # Written as products, of which the first takes the keys with their dimensions exchanged.
            details["key"] = [*keys[:-2], *reversed(keys[-2:])]
            details.pop("output", None)
        details |= {"engine": engine} if (engine := _engine(problem)) else {}
        return details | ({"operations": operations} if len(operations) > 1 else {})

    def columns(self) -> LibraryCalls:
        return LibraryCalls(
            function=np.array(self.function, np.int32),
            family=np.array(self.family, np.int32),
            sizes=np.array(self.sizes, np.int64).reshape(-1, 4),
            layout=np.array(self.layout, np.int32),
            dtypes=np.array(self.dtypes, np.int32).reshape(-1, 4),
            problem=np.array(self.problem, np.int32),
        )


def _whole(value: object) -> int:
    return value if type(value) is int else NONE


def _operations(problem: Mapping[str, Any]) -> list[dict[str, Any]]:
    operations = problem.get("operations")
    return [row for row in operations if isinstance(row, dict)] if isinstance(operations, list) else []


def _attention(operations: Sequence[str]) -> str:
    """Return what a graph with several products is; empty = no attention.

    The front end of cuDNN writes attention as its products: two of them, and five for the gradients.
    """
    products = operations.count("matmul")
    return "" if products < 2 else "attention" if products == 2 else "attention_gradient"


def _engine(problem: Mapping[str, Any]) -> str:
    """Return the number of cuDNN's engine and the knobs that are set, as one text; empty = unknown."""
    engine = problem.get("engine")
    if not isinstance(engine, dict) or type(engine.get("number")) is not int:
        return ""
    knobs = engine.get("knobs")
    listed = sorted(knobs.items(), key=lambda item: int(item[0])) if isinstance(knobs, dict) else []
    return " ".join([str(engine["number"]), *(f"{knob}={value}" for knob, value in listed)])


def _first_operation(problem: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the operation of a graph that names itself: the others only follow it."""
    return next((row for row in _operations(problem) if "operation" in row), {})


def _tensor(operation: Mapping[str, Any], keys: Sequence[str]) -> Mapping[str, Any]:
    return next((operation[key] for key in keys if isinstance(operation.get(key), dict)), {})


def _layout(tensor: Mapping[str, Any]) -> str:
    shape, strides = tensor.get("shape"), tensor.get("strides")
    if not isinstance(shape, list) or not isinstance(strides, list) or len(strides) < 4:
        return ""
    return "nhwc" if strides[1] == 1 and (shape[1] != 1 or strides[-1] != 1) else "nchw"


def _launched_by(
    trace: Trace, notes: LaunchNotes, time_ns: NDArray[np.int64], strings: _Strings
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the innermost operator and module of each launch, as rows of the texts."""
    events = trace.events
    operators = nesting_of(events, np.flatnonzero(events.kind == SPAN_KINDS.index("operator")))
    modules = nesting_of(events, np.flatnonzero(events.kind == SPAN_KINDS.index("module")))
    operator = np.full(len(time_ns), NONE, np.int64)
    module = np.full(len(time_ns), NONE, np.int64)
    threads = np.array(notes.thread, np.int64)
    for native in np.unique(threads):
        of_thread = threads == native
        thread = operators.thread_of(time_ns[of_thread])
        operator[of_thread] = operators.innermost(time_ns[of_thread], thread)
        module[of_thread] = modules.innermost(time_ns[of_thread], thread)
    module = np.where(module == NONE, _module_of_forward(events, operators, modules, operator), module)
    name = events.name
    text_of = {int(row): strings(trace.names[row]) for row in np.unique(name[operator[operator != NONE]])}
    text_of |= {int(row): strings(trace.names[row]) for row in np.unique(name[module[module != NONE]])}

    def texts(rows: NDArray[np.int64]) -> NDArray[np.int32]:
        named = np.where(rows == NONE, NONE, name[rows]).tolist()
        return np.fromiter((text_of.get(row, NONE) for row in named), np.int32, len(rows))

    return texts(operator), texts(module)


def _module_of_forward(
    events: EventTable, operators: Nesting, modules: Nesting, operator: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the module in which the forward operator of a backward one ran.

    Autograd numbers its nodes: the backward operator has the number of the forward operator that made its
    node. Of several with one number (views of a tensor) the last began inside the same module.
    """
    sequence = events.sequence_number
    backward = events.forward_thread > 0  # the profiler numbers threads from 1; forward operators have 0
    numbered = operators.outward(operator, (sequence >= 0) & backward)
    forward = np.flatnonzero((sequence >= 0) & ~backward)
    if not len(forward):
        return np.full(len(operator), NONE, np.int64)
    forward = forward[np.lexsort((events.begin_ns[forward], sequence[forward]))]
    wanted = np.where(numbered == NONE, NONE, sequence[numbered])
    rows = forward[np.maximum(np.searchsorted(sequence[forward], wanted, "right") - 1, 0)]
    found = (wanted != NONE) & (sequence[rows] == wanted)
    module = np.full(len(operator), NONE, np.int64)
    for thread in np.unique(events.thread[rows[found]]):
        here = found & (events.thread[rows] == thread)
        module[here] = modules.innermost(events.begin_ns[rows[here]], int(thread))
    return module
