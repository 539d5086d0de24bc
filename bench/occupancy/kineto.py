"""Kernels of a profiler trace with the operators that launched them: the measurements that the models
are fitted to."""

from __future__ import annotations

import ast
import gzip
import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmem.occupancy.kernel_model import Kernel, KernelLaunch, Recorded
from xmem.occupancy.problems import Problem, Product, alignment_of

_DTYPES = {
    "c10::BFloat16": "bfloat16",
    "c10::Half": "float16",
    "float": "float32",
    "double": "float64",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "bool": "bool",
    "signed char": "int8",
    "unsigned char": "int8",
}


@dataclass(frozen=True)
class Call:
    """One operator that launched something, with its launches in order."""

    operator: str
    recorded: Recorded
    durations_ns: tuple[int, ...]
    begins_ns: tuple[int, ...]


@dataclass(frozen=True)
class Trace:
    """A trace's kernels by the operator that launched them.

    ``orphans`` are kernels whose launch or operator the trace does not hold.
    """

    name: str
    gpu: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    calls: list[Call]
    orphans: list[tuple[KernelLaunch, int]]
    operators: list[dict[str, Any]]

    def launches(self) -> list[KernelLaunch]:
        return [launch for call in self.calls for launch in call.recorded.launches]


def read_document(path: Path) -> dict[str, Any] | None:
    """Read the JSON of a trace, compressed or not; None where it names no device."""
    raw = path.read_bytes()
    try:
        document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except ValueError:
        return None
    return document if isinstance(document, dict) and document.get("deviceProperties") else None


def read(path: Path) -> Trace | None:
    """Read a trace; None where it has no kernels of an NVIDIA GPU with their resources."""
    document = read_document(path)
    if document is None:
        return None
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    kernels = [event for event in events if str(event.get("cat", "")).lower() == "kernel"]
    kernels = [event for event in kernels if "registers per thread" in event.get("args", {})]
    if not kernels:
        return None
    gpu = document["deviceProperties"][0]
    operators = [event for event in events if event.get("cat") in ("cpu_op", "Operator") and "dur" in event]
    owners = _owners(events, operators, kernels)
    capability = (gpu["computeMajor"], gpu["computeMinor"])
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    orphans = []
    for kernel in sorted(kernels, key=lambda event: event["ts"]):
        owner = owners.get(id(kernel))
        if owner is None:
            orphans.append((_launch(kernel, 1.0), round(kernel["dur"] * 1000)))
        else:
            groups[id(owner)].append(kernel)
    by_id = {id(operator): operator for operator in operators}
    calls = []
    for key, group in groups.items():
        operator = by_id[key]
        total = sum(kernel["dur"] for kernel in group) or 1
        recorded = Recorded(
            problem_of(operator),
            capability,
            gpu["numSms"],
            tuple(_launch(kernel, round(kernel["dur"] / total, 2)) for kernel in group),
        )
        calls.append(
            Call(
                operator["name"],
                recorded,
                tuple(round(kernel["dur"] * 1000) for kernel in group),
                tuple(round(kernel["ts"] * 1000) for kernel in group),
            )
        )
    return Trace(path.name.split(".")[0], gpu["name"], capability, gpu["numSms"], calls, orphans, operators)


def _launch(event: dict[str, Any], share: float) -> KernelLaunch:
    args = event["args"]
    threads, blocks = (math.prod(max(size, 1) for size in args[key]) for key in ("block", "grid"))
    kernel = Kernel(event["name"], threads, args["registers per thread"], args["shared memory"])
    return KernelLaunch(kernel, blocks, share)


def _owners(
    events: list[dict[str, Any]], operators: list[dict[str, Any]], kernels: list[dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Return the innermost operator around the host's call that launched each kernel."""
    host_calls = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver", "Runtime"):
            correlation = event.get("args", {}).get("correlation")
            if correlation is not None:
                host_calls[correlation] = event
    by_thread: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for operator in operators:
        by_thread[operator["pid"], operator["tid"]].append(operator)
    wanted: dict[Any, list[tuple[float, dict[str, Any]]]] = defaultdict(list)
    for kernel in kernels:
        call = host_calls.get(kernel["args"].get("correlation"))
        if call is not None:
            wanted[call["pid"], call["tid"]].append((call["ts"], kernel))
    owners = {}
    for thread, launched in wanted.items():
        spans = sorted(by_thread.get(thread, []), key=lambda event: (event["ts"], -event["dur"]))
        launched.sort(key=lambda pair: pair[0])
        stack: list[dict[str, Any]] = []
        position = 0
        for time, kernel in launched:
            while position < len(spans) and spans[position]["ts"] <= time:
                while stack and stack[-1]["ts"] + stack[-1]["dur"] <= spans[position]["ts"]:
                    stack.pop()
                stack.append(spans[position])
                position += 1
            while stack and stack[-1]["ts"] + stack[-1]["dur"] <= time:
                stack.pop()
            if stack:
                owners[id(kernel)] = stack[-1]
    return owners


def problem_of(operator: dict[str, Any]) -> Problem:
    """Return what an operator of the profiler was asked to compute."""
    args = operator.get("args", {})
    dims = args.get("Input Dims", args.get("Input dims")) or []
    types = args.get("Input type") or []
    strides = args.get("Input Strides") or [None] * len(dims)
    concrete = args.get("Concrete Inputs") or [""] * len(dims)
    shapes, dtypes, dense, kept = [], [], [], []
    for size, dtype, stride in zip(dims, types, strides, strict=False):
        if dtype == "TensorList" and size and isinstance(size[0], list):
            shapes += [tuple(item) for item in size]
            dtypes += ["list"] * len(size)
            dense += [True] * len(size)
            kept += [None] * len(size)
        elif dtype in _DTYPES and (size or not _is_scalar(dtype, size, stride)):
            shapes.append(tuple(size))
            dtypes.append(_DTYPES[dtype])
            dense.append(stride is None or _contiguous(size, stride))
            kept.append(stride)
    name = operator["name"]
    name = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    product = _product(name, shapes, kept, concrete)
    return Problem(name, tuple(shapes), tuple(dtypes), tuple(dense), product)


def _is_scalar(dtype: str, size: Any, stride: Any) -> bool:
    return dtype in ("double", "float", "int", "long int", "bool") and not size and not stride


def _contiguous(size: list[int], stride: list[int]) -> bool:
    expected = 1
    for length, step in zip(reversed(size), reversed(stride), strict=False):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True


def _product(
    name: str, shapes: list[tuple[int, ...]], strides: list[Any], concrete: list[Any]
) -> Product | None:
    short = name.removeprefix("aten::")
    if short in ("addmm", "mm", "bmm", "baddbmm"):
        first = 1 if short in ("addmm", "baddbmm") else 0
        if len(shapes) < first + 2 or len(shapes[first]) < 2 or len(shapes[first + 1]) < 2:
            return None
        (rows, depth), columns = shapes[first][-2:], shapes[first + 1][-1]
        batch = shapes[first][0] if len(shapes[first]) == 3 else 1
        layout, leading = "", [columns]
        if strides[first] and strides[first + 1]:
            # Column-major: PyTorch's second matrix is cuBLAS's A.
            layout = "".join(
                "n" if step[-1] == 1 or step[-2] == 0 else "t"
                for step in (strides[first + 1], strides[first])
            )
            leading += [
                step[-2] if step[-1] == 1 else step[-1] for step in (strides[first + 1], strides[first])
            ]
        return Product(columns, rows, depth, batch, layout, alignment_of(*(size for size in leading if size)))
    if short in ("cudnn_convolution", "convolution_overrideable") and len(shapes) >= 2:
        return _convolution(shapes[0], shapes[1], concrete)
    return None


def _convolution(image: tuple[int, ...], filters: tuple[int, ...], concrete: list[Any]) -> Product | None:
    """Return the product that an implicit GEMM computes: channels out, places of the result, length of
    the sums."""
    lists = [item for item in map(_numbers, concrete) if item is not None]
    spatial = len(image) - 2
    padding, stride = lists[:2] if len(lists) >= 2 else ([0] * spatial, [1] * spatial)
    places = image[0]
    for length, window, pad, step in zip(image[2:], filters[2:], padding, stride, strict=False):
        places *= (length + 2 * pad - window) // max(step, 1) + 1
    return Product(filters[0], max(places, 1), math.prod(filters[1:]), 1, "nchw", alignment_of(*filters[:2]))


def _numbers(text: Any) -> list[int] | None:
    if not isinstance(text, str) or not text.startswith("["):
        return None
    try:
        return [int(item) for item in ast.literal_eval(text)]
    except (ValueError, SyntaxError):
        return None
