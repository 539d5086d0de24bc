"""Write a seeded synthetic training trace of any size, in the exact shape of torch 2.13, as a stream.

    python bench/make_trace.py --events 1e6 -o big.json.gz --python-functions 0.9

A chain of linear layers is trained for a few iterations: load a batch, zero the gradients, forward, backward
in reverse order, optimizer step. Every activation is freed in backward, gradients live until the next
`zero_grad`, optimizer state from the first step on, and addresses are reused by size. The number of layers
follows from the number of events. As torch does, spans are written first, then memory events, then Python
frames, so the training is walked through once for each. Modules are Python frames where there are any, else
spans as our capture writes them, which stand at the head of the file. Same arguments, same bytes.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Literal

from isal import igzip

Format = Literal["torch213", "compact", "2021"]
Part = Literal["capture", "spans", "memory", "frames"]

PID = 4739
BASE_NS = 4_374_022_153_222_797
WRITE_EVENTS = 4096

SIZES = tuple(512 * factor for factor in (1, 2, 3, 8, 24, 96, 384, 1536, 4096, 12_288))
EVALUATE = "autograd::engine::evaluate_function: "

# Spans of one call: name, begin and duration, in ticks of random length.
FORWARD = (
    ("aten::linear", 0, 20),
    ("aten::t", 1, 6),
    ("aten::transpose", 2, 4),
    ("aten::as_strided", 3, 1),
    ("aten::addmm", 8, 11),
)
BACKWARD = (
    (EVALUATE + "AddmmBackward0", 0, 30),
    ("AddmmBackward0", 1, 27),
    ("aten::t", 2, 6),
    ("aten::transpose", 3, 4),
    ("aten::as_strided", 4, 1),
    ("aten::mm", 9, 5),
    ("aten::mm", 15, 5),
)
ACCUMULATE = (
    (EVALUATE + "torch::autograd::AccumulateGrad", 31, 5),
    ("torch::autograd::AccumulateGrad", 32, 3),
    ("aten::detach", 33, 1),
)
OPTIMIZER = (("aten::mul_", 0, 4), ("aten::addcmul_", 5, 4), ("aten::sqrt", 10, 4), ("aten::addcdiv_", 15, 4))
NUMBERED = {"aten::linear", "aten::t", "aten::addmm", EVALUATE + "AddmmBackward0", "AddmmBackward0"}
CALL_TICKS = 40

FRAMES = (
    "torch/nn/modules/module.py(1775): _wrapped_call_impl",
    "torch/nn/modules/module.py(1786): _call_impl",
    "model.py(41): forward",
    "torch/nn/modules/linear.py(130): forward",
    "typing.py(2268): cast",
    "/venv/lib/python3.11/site-packages/timm/layers/mlp.py(43): forward",
    "<built-in method __enter__ of _thread.lock object at 0x7f0c24205df0>",
    "<built-in function linear>",
)

# What the rest of a trace with many Python frames is: imports, hardly any of them the user's own.
IMPORT_FRAMES = (
    "<frozen importlib._bootstrap>(1165): _find_and_load",
    "<frozen importlib._bootstrap_external>(934): exec_module",
    "<built-in method exec of module object at 0x7f0c244a7920>",
    "transformers/utils/import_utils.py(2045): __getattr__",
    "dataclasses.py(1221): wrap",
    "<built-in function __build_class__>",
    "re/_parser.py(436): _parse_sub",
    "<built-in method append of list object at 0x7f0c0a1b5e40>",
)

Event = tuple[Part, str, str, int, int, int, int]
"""Part, category, name, begin (ns), duration (ns) or signed bytes, address, sequence number (-1 none)."""


@dataclass
class Heap:
    """Addresses by size, reused youngest first."""

    bump: int = 94_923_586_595_776
    unused: dict[int, list[int]] = field(default_factory=dict)

    def alloc(self, size: int) -> int:
        if self.unused.get(size):
            return self.unused[size].pop()
        self.bump += size
        return self.bump - size

    def free(self, address: int, size: int) -> None:
        self.unused.setdefault(size, []).append(address)


@dataclass
class Training:
    """Walks through a training and tells what the profiler would see, each part in order of begin.

    How long an annotation lasts is known only after what is inside: a first walk fills `ends` for the next.
    """

    layers: int
    iterations: int
    frames_per_call: float
    seed: int
    ends: dict[str, int] = field(default_factory=dict)
    heap: Heap = field(default_factory=Heap)
    clock_ns: int = BASE_NS
    tick_ns: int = 0
    frame_debt: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.sizes = self.random.choices(SIZES, k=self.layers)
        self.gradients: list[int] = []
        self.state: list[int] = []

    def events(self) -> Iterator[Event]:
        """The whole training."""
        for size in self.sizes:
            yield self._memory(0, size, self.heap.alloc(size))
            self.clock_ns += 1000
        for iteration in range(self.iterations):
            yield from self._during(f"ProfilerStep#{iteration}", iteration, self._iteration(iteration))

    def _during(self, name: str, iteration: int, inside: Iterator[Event]) -> Iterator[Event]:
        """An annotation and what happens inside."""
        begin_ns = self.clock_ns
        duration_ns = self.ends.get(f"{name} {iteration}", begin_ns) - begin_ns
        yield "spans", "user_annotation", name, begin_ns, duration_ns, -1, -1
        self.clock_ns += 500
        yield from inside
        self.clock_ns += 500
        self.ends[f"{name} {iteration}"] = self.clock_ns

    def _iteration(self, iteration: int) -> Iterator[Event]:
        first = iteration * self.layers
        batch = self.heap.alloc(SIZES[-1])
        activations: list[int] = []
        loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        yield from self._during(loader, iteration, iter([self._memory(0, SIZES[-1], batch)]))
        yield from self._during("Optimizer.zero_grad#AdamW.zero_grad", iteration, self._zero_grad())
        for layer, size in enumerate(self.sizes):
            yield from self._forward(layer, size, first + layer, activations)
        for layer in reversed(range(self.layers)):
            yield from self._backward(self.sizes[layer], first + layer, activations.pop())
        yield from self._during("Optimizer.step#AdamW.step", iteration, self._step())
        yield self._free(0, SIZES[-1], batch)

    def _zero_grad(self) -> Iterator[Event]:
        for size, address in zip(reversed(self.sizes), self.gradients, strict=False):
            yield self._free(0, size, address)
            self.clock_ns += 1000
        self.gradients.clear()

    def _forward(self, layer: int, size: int, number: int, activations: list[int]) -> Iterator[Event]:
        yield from self._begin_call()
        if self.frames_per_call:
            module: tuple[Part, str, str] = ("frames", "python_function", f"nn.Module: Linear_{layer}")
        else:
            module = ("capture", "xmem_module", f"Net.layers.{layer}")
        yield *module, self.clock_ns, 21 * self.tick_ns, -1, -1
        yield from self._call(FORWARD, number)
        yield from self._temporary(9, 2 * size)
        activations.append(self.heap.alloc(size))
        yield self._memory(13, size, activations[-1])
        self._end_call()

    def _backward(self, size: int, number: int, activation: int) -> Iterator[Event]:
        yield from self._begin_call()
        yield from self._call(BACKWARD, number)
        self.gradients.append(self.heap.alloc(size))
        yield self._memory(10, size, self.gradients[-1])
        yield from self._temporary(16, size)
        yield self._free(29, size, activation)
        yield from self._call(ACCUMULATE, -1)
        self._end_call()

    def _step(self) -> Iterator[Event]:
        first_step = not self.state
        for size in self.sizes:
            yield from self._begin_call()
            yield from self._call(OPTIMIZER, -1)
            if first_step:
                self.state.append(self.heap.alloc(size))
                yield self._memory(1, size, self.state[-1])
            yield from self._temporary(11, size)
            self._end_call()

    def _begin_call(self) -> Iterator[Event]:
        """Python frames, nested eight deep, before a call; then how long a tick of the call is."""
        self.frame_debt += self.frames_per_call
        frames = FRAMES
        while self.frame_debt >= 1:
            nested = frames[: int(self.frame_debt)]
            for depth, name in enumerate(nested):
                yield "frames", "python_function", name, self.clock_ns + depth * 50, 850 - depth * 100, -1, -1
            self.frame_debt -= len(nested)
            frames = IMPORT_FRAMES
            self.clock_ns += 1000
        self.tick_ns = self.random.randrange(100, 500)

    def _end_call(self) -> None:
        self.clock_ns += CALL_TICKS * self.tick_ns
        self.tick_ns = 0

    def _call(self, spans: Iterable[tuple[str, int, int]], number: int) -> Iterator[Event]:
        clock, tick = self.clock_ns, self.tick_ns
        for name, begin, duration in spans:
            sequence_number = number if name in NUMBERED else -1
            yield "spans", "cpu_op", name, clock + begin * tick, duration * tick, -1, sequence_number

    def _temporary(self, at_tick: int, size: int) -> Iterator[Event]:
        address = self.heap.alloc(size)
        yield self._memory(at_tick, size, address)
        yield self._free(at_tick + 2, size, address)

    def _free(self, at_tick: int, size: int, address: int) -> Event:
        self.heap.free(address, size)
        return self._memory(at_tick, -size, address)

    def _memory(self, at_tick: int, signed_bytes: int, address: int) -> Event:
        return "memory", "", "[memory]", self.clock_ns + at_tick * self.tick_ns, signed_bytes, address, -1


TYPES = '"Input type": ["float", "float", "float", "Scalar"]'
SHAPES = (
    '"Input Strides": [[1], [768, 1], [1, 768], []], "Input Dims": [[3072], [8192, 768], [768, 3072], []]'
)
RECORDED = f'"Record function id": 0, "Concrete Inputs": ["", "", "", "1"], {TYPES}, {SHAPES}, '
DEVICE = '"Bytes": %d, "Device Id": -1, "Device Type": 0'
STAMP = f'    "pid": {PID},\n    "tid": {PID},\n    "ts": '

SPAN_213 = (
    '\n  {\n    "ph": "X",\n    "cat": "%s",\n    "name": "%s",\n'
    + STAMP
    + '%s,\n    "dur": %s\n    ,\n    "args": {\n      %s\n    }\n  }'
)
MEMORY_213 = (
    '\n  {\n    "ph": "i",\n    \n    "cat": "cpu_instant_event",\n    "s": "t",\n    "name": "[memory]",\n'
    + STAMP
    + '%s\n    ,\n    "args": {\n      %s\n    }\n  }'
)
SPAN_COMPACT = f'{{"ph":"X","cat":"%s","name":"%s","pid":{PID},"tid":{PID},"ts":%s,"dur":%s,"args":{{%s}}}}'
MEMORY_COMPACT = (
    f'{{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":{PID},"tid":{PID},"ts":%s,'
    '"args":{%s}}'
)
MEMORY_2021 = f'\n  {{"ph":"i","s":"t","name":"[memory]","pid":{PID},"tid":{PID},"ts":%s,"args":{{%s}}}}'
LAYOUTS: dict[Format, tuple[str, str]] = {
    "torch213": (SPAN_213, MEMORY_213),
    "compact": (SPAN_COMPACT, MEMORY_COMPACT),
    "2021": ("\n  " + SPAN_COMPACT, MEMORY_2021),
}
BASE_TIME = '"baseTimeNanoseconds": 1790857026000000000'
HEADERS: dict[Format, str] = {
    "torch213": f' {{\n    "schemaVersion": 1,\n    "deviceProperties": [],\n    "displayTimeUnit": "ms",\n'
    f'    {BASE_TIME},\n    "traceEvents": [\n    ',
    "compact": f'{{"schemaVersion":1,"displayTimeUnit":"ms",{BASE_TIME},"traceEvents":[',
    "2021": "[",
}
FOOTERS: dict[Format, str] = {
    "torch213": '\n  ],"traceName": "synthetic.json" }',
    "compact": "]}",
    "2021": "\n]\n",
}


def event_texts(events: Iterable[Event], part: Part, first_index: int, format: Format) -> Iterator[str]:
    """The text of every event of one part, numbered as torch does."""
    span_text, memory_text = LAYOUTS[format]
    of_part = (event for event in events if event[0] == part)
    for index, (_, category, name, begin_ns, amount, address, sequence_number) in enumerate(
        of_part, first_index
    ):
        begin = _microseconds(begin_ns)
        if part == "memory":
            yield memory_text % (begin, _memory_args(format, amount, address, index))
        else:
            kind = "Operator" if format == "2021" and part == "spans" else category
            args = _span_args(kind, index, sequence_number)
            yield span_text % (kind, name, begin, _microseconds(amount), args)


def _memory_args(format: Format, signed_bytes: int, address: int, index: int) -> str:
    device = DEVICE % signed_bytes
    if format == "2021":
        return device
    totals = '"Total Reserved": 0, "Total Allocated": 0'
    return f'{totals}, {device}, "Addr": {address}, "finished": false, "Ev Idx": {index}'


def _span_args(category: str, index: int, sequence_number: int) -> str:
    if category.startswith("xmem"):
        return ""
    if category == "python_function":
        return f'"Python parent id": {index}, "Python id": {index + 1}, "Ev Idx": {index}'
    autograd = "" if sequence_number < 0 else f'"Sequence number": {sequence_number}, "Fwd thread id": 0, '
    if category == "Operator":
        return f'"External id": {index}, {autograd}{TYPES}'
    recorded = RECORDED if category == "cpu_op" else '"Record function id": 0, '
    return f'"External id": {index + 1},{autograd}{recorded}"Ev Idx": {index}'


def _microseconds(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def training_of(events: int, python_functions: float, iterations: int, seed: int) -> tuple[int, float]:
    """Layers and frames a call that make about so many events, of which that share are Python frames."""

    def parts(layers: int) -> Counter[Part]:
        return Counter(event[0] for event in Training(layers, iterations, 0.0, seed).events())

    one, two = parts(1), parts(2)
    others = two["spans"] + two["memory"] - one["spans"] - one["memory"]
    layers = max(1, round(events * (1 - python_functions) / (others + (python_functions == 0) * iterations)))
    if python_functions == 0:
        return layers, 0.0
    frames = others * python_functions / (1 - python_functions)
    calls = 3 * iterations
    return layers, max(0.1, (frames - iterations) / calls)


def write(sink: IO[bytes], format: Format, new_training: Iterable[Training]) -> Counter[Part]:
    """Write the file, a walk through the training for each part; returns the events of each."""
    walks = iter(new_training)
    counts = Counter(event[0] for event in next(walks).events())
    texts: Iterator[str] = chain.from_iterable(
        event_texts(next(walks).events(), part, first_index, format)
        for part, first_index in (
            ("capture", 0),
            ("spans", 0),
            ("memory", counts["spans"]),
            ("frames", counts["spans"] + counts["memory"]),
        )
        if counts[part]
    )
    sink.write((HEADERS[format] + next(texts)).encode())
    while batch := list(islice(texts, WRITE_EVENTS)):
        sink.write(("," + ",".join(batch)).encode())
    sink.write(FOOTERS[format].encode())
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=float, default=1e6, help="about how many events")
    parser.add_argument("--python-functions", type=float, default=0.0, help="share of Python frames, below 1")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=LAYOUTS, default="torch213")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file; compressed if it ends in .gz")
    options = parser.parse_args()
    if not 0 <= options.python_functions < 1:
        parser.error("--python-functions is a share: from 0 to below 1, such as 0.9")

    started = time.perf_counter()
    layers, frames_per_call = training_of(
        int(options.events), options.python_functions, options.iterations, options.seed
    )
    ends: dict[str, int] = {}
    walks = (Training(layers, options.iterations, frames_per_call, options.seed, ends) for _ in count())
    with options.output.open("wb") as file:
        if options.output.suffix == ".gz":
            with igzip.IGzipFile(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as sink:
                counts = write(sink, options.format, walks)
        else:
            counts = write(file, options.format, walks)
    size = options.output.stat().st_size
    parts = ", ".join(f"{counts[part]:,} {part}" for part in counts)
    seconds = time.perf_counter() - started
    print(
        f"{options.output}: {counts.total():,} events ({parts}), {size:,} bytes in {seconds:.1f} s",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
