"""The computation graph that the network sees: operators, and what they hand each other. Needs no PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xmem.devices.gpus import Device
from xmem.occupancy.problems import Problem, broadcast
from xmem.records import dataclass

OPERATORS = [
    "add",
    "sub",
    "mul",
    "div",
    "addmm",
    "mm",
    "bmm",
    "baddbmm",
    "cudnn_convolution",
    "convolution",
    "native_layer_norm",
    "cudnn_batch_norm",
    "native_batch_norm",
    "_softmax",
    "_log_softmax",
    "gelu",
    "relu",
    "silu",
    "sigmoid",
    "tanh",
    "clamp_min",
    "clamp",
    "pow",
    "sqrt",
    "rsqrt",
    "exp",
    "log",
    "neg",
    "mean",
    "sum",
    "copy",
    "cat",
    "index_select",
    "index",
    "embedding",
    "fill",
    "masked_fill",
    "max_pool2d_with_indices",
    "_adaptive_avg_pool2d",
    "_flash_attention_forward",
    "_efficient_attention_forward",
    "lstm",
    "rnn_tanh",
    "linalg_vector_norm",
]
"""Operators with a place of their own in the one-hot type; the last place is for all others."""

EDGE_KINDS = ("sequence", "data")
"""What an edge says: that an operator comes after another, or takes what the other made."""


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in the order of the program, with edges from earlier to later ones.

    Attributes:
        problems: The nodes.
        source: int32, node of each edge's beginning.
        target: int32, node of its end.
        kind: uint8, index into ``EDGE_KINDS``.
        edge_bytes: int64, of the tensor that is handed over; 0 = none.
    """

    problems: tuple[Problem, ...]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    kind: NDArray[np.uint8]
    edge_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.problems)

    def window(self, begin: int, end: int) -> OperatorGraph:
        """Return the operators of a stretch, with the edges among them."""
        kept = (self.source >= begin) & (self.target < end)
        return OperatorGraph(
            self.problems[begin:end],
            self.source[kept] - begin,
            self.target[kept] - begin,
            self.kind[kept],
            self.edge_bytes[kept],
        )


def graph_in_order(problems: Sequence[Problem]) -> OperatorGraph:
    """Return the graph of recorded operators, of which only inputs and order are known.

    Each operator follows the one before it. One that takes a shape which the operator before it did not
    make also takes it from the latest that did: a guess, as recordings do not say who made a tensor.
    """
    edges: list[tuple[int, int, int, int]] = []
    made: dict[tuple[int, ...], int] = {}
    for node, problem in enumerate(problems):
        if node:
            previous = broadcast(problems[node - 1].shapes)
            edges.append((node - 1, node, 0, 4 * math.prod(previous)))
        for shape in dict.fromkeys(problem.shapes):
            maker = made.get(shape, -1)
            if 0 <= maker < node - 1:
                edges.append((maker, node, 1, 4 * math.prod(shape)))
        made[_result(problem)] = node
    return graph_of_edges(problems, edges)


def graph_of_edges(problems: Sequence[Problem], edges: Sequence[tuple[int, int, int, int]]) -> OperatorGraph:
    """Return a graph from edges of source, target, kind and bytes."""
    columns = np.array(edges, dtype=np.int64).reshape(-1, 4)
    return OperatorGraph(
        tuple(problems),
        columns[:, 0].astype(np.int32),
        columns[:, 1].astype(np.int32),
        columns[:, 2].astype(np.uint8),
        columns[:, 3],
    )


def _result(problem: Problem) -> tuple[int, ...]:
    product = problem.product
    if product is None:
        return broadcast(problem.shapes)
    return (product.batch, product.n, product.m) if product.batch > 1 else (product.n, product.m)


def node_features(graph: OperatorGraph, gpu: Device) -> NDArray[np.float32]:
    """Return Table I's features of each operator: type, hyper-parameters, sizes, work, and the GPU's.

    Sizes and work are logarithms, so that they are of one magnitude.
    """
    rows = []
    board = _board(gpu)
    for problem in graph.problems:
        kind = problem.operator.removeprefix("aten::")
        one_hot = np.zeros(len(OPERATORS) + 1)
        one_hot[OPERATORS.index(kind) if kind in OPERATORS else -1] = 1
        product = problem.product
        sizes = (product.m, product.n, product.k, product.batch, product.alignment) if product else (0,) * 5
        quantities = problem.quantities
        inputs = sum(math.prod(shape) for shape in problem.shapes)
        output = product.m * product.n * product.batch if product else quantities["result"]
        temporary = product.n * product.k * product.batch if product and product.layout == "nchw" else 0
        flops = product.flops if product else output
        values = [*sizes, quantities["rows"], quantities["columns"], temporary, inputs, output, flops]
        widths = [float("16" in dtype) for dtype in problem.dtypes[-1:]] or [0.0]
        rows.append(
            np.concatenate([one_hot, np.log1p(values) / 10, widths, [float(all(problem.dense))], board])
        )
    return np.array(rows, dtype=np.float32).reshape(len(graph), -1)


def edge_features(graph: OperatorGraph, gpu: Device) -> NDArray[np.float32]:
    """Return Table I's features of each edge: kind, size of what is handed over, and the time to move it."""
    kinds = np.eye(len(EDGE_KINDS))[graph.kind]
    moved = np.log1p(graph.edge_bytes) / 10
    times = np.log1p(graph.edge_bytes / bandwidth_of(gpu)) / 10
    return np.column_stack([kinds, moved, times]).astype(np.float32)


def bandwidth_of(gpu: Device) -> float:
    """Return the memory's peak bytes per nanosecond: two transfers a clock on the whole bus."""
    return gpu.attributes["MemoryClockRate"] * 1e3 * 2 * gpu.attributes["GlobalMemoryBusWidth"] / 8 / 1e9


def _board(gpu: Device) -> list[float]:
    """Return what the network is told of the GPU: peak single-precision work, memory, multiprocessors."""
    peak = gpu.multiprocessors * 128 * 2 * gpu.attributes["ClockRate"] * 1e3
    return [math.log(peak / 1e12) / 5, math.log(gpu.total_memory_bytes / 1e9) / 5, gpu.multiprocessors / 132]
