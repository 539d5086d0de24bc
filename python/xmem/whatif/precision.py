"""Half precision: everything (``bf16``), or only autocast's part (``bf16-autocast``, ``fp16-autocast``).

These are approximations, unlike the other what-ifs: the profiler records which operators ran and on which
types, but not which tensor went where. docs/commands/what_if.md describes the coverage and the accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from xmem.dtypes import OF_PROFILER
from xmem.errors import ConfigError
from xmem.orchestration.optimizer.optimizer_steps import Parameter
from xmem.records import dataclass
from xmem.run.workload import concatenated
from xmem.trace.attribution import Category, Phase
from xmem.whatif.changed_run import ChangedRun
from xmem.whatif.gradients import arrivals

_PURE, _AUTOCAST = ("bf16", "fp16"), ("bf16-autocast", "fp16-autocast")

_LOWERED = (
    "aten::linear",
    "aten::conv",
    "aten::matmul",
    "aten::mm",
    "aten::bmm",
    "aten::addmm",
    "aten::addbmm",
    "aten::baddbmm",
    "aten::einsum",
    "aten::scaled_dot_product_attention",
)
"""Operators that autocast runs in half precision (`AT_FORALL_LOWER_PRECISION_FP` of `autocast_mode.h`)."""

_FLOAT32 = (
    "aten::softmax",
    "aten::log_softmax",
    "aten::layer_norm",
    "aten::group_norm",
    "aten::rms_norm",
    "aten::cross_entropy_loss",
    "aten::nll_loss",
    "aten::mse_loss",
    "aten::l1_loss",
    "aten::smooth_l1_loss",
    "aten::binary_cross_entropy_with_logits",
    "aten::embedding",
    "aten::sum",
    "aten::exp",
    "aten::log",
    "aten::pow",
    "aten::softplus",
    "aten::upsample",
)
"""Operators that it runs in float32 (`AT_FORALL_FP32`), and embedding, whose weight it leaves alone."""

_NORMS = ("aten::layer_norm", "aten::group_norm", "aten::rms_norm")
_SUMS = ("aten::add", "aten::sub", "aten::mul", "aten::div", "aten::cat", "aten::stack")
_STATISTICS = ("norm", "scaled_dot_product")
_COUNTER_BYTES = 4


@dataclass(frozen=True)
class Halved:
    """``precision=bf16`` or ``fp16``: the model and everything computed from it.

    Every block of float32 halves, except those that CUDA keeps in float32: statistics of norms, the
    logarithms of attention, and steps of optimizers. Integers and masks stay. The dtype of a block is that of
    the named tensor that it holds, else of the first floating input of the operator that made it. The model
    is assumed to arrive in half precision.
    """

    text: str

    def __call__(self, run: ChangedRun) -> ChangedRun:
        """Halve all float32 blocks."""
        _require_float32(run)
        workload = run.workload
        largest = _largest_of_operator(run)
        halves = np.fromiter((_is_float32(run, row) for row in range(len(workload))), np.bool_, len(workload))
        named = workload.tensor >= 0
        for row in np.flatnonzero(halves & ~named).tolist():
            names = [_operator_name(run, each) for each in _upwards(run, int(workload.operator[row]))]
            forward = workload.phase[row] == Phase.FORWARD
            statistic = forward and any(word in name for name in names for word in _STATISTICS)
            halves[row] = not (statistic and workload.size_bytes[row] < largest[row])
        sizes = np.where(halves, workload.size_bytes // 2, workload.size_bytes)
        return run.with_workload(workload.with_columns(size_bytes=sizes))


@dataclass(frozen=True)
class Autocast:
    """``precision=bf16-autocast`` or ``fp16-autocast``: forward and loss under ``torch.autocast``.

    In each forward pass, in the order of its operators: results of the operators on autocast's list halve;
    those of its float32 list stay; the others follow the operator before them, and sums follow the stream of
    the model, which is float32 behind an embedding. A float32 input of an operator on the list is copied in
    half size and saved in the place of the original, which ends with the operator where only a norm made it.
    Weights and biases of modules are copied in half size when first used; weights live until their gradient,
    biases until the backward pass begins. In the backward pass gradients have the dtype of the forward; those
    of weights come in half first. Loss scaling's scalars are not added. A graph with branches of both dtypes,
    other than a residual stream, is not followed.
    """

    text: str

    def __call__(self, run: ChangedRun) -> ChangedRun:
        """Cast every forward pass."""
        _require_float32(run)
        blocks = run.workload.block[run.workload.block >= 0]
        if len(np.unique(blocks)) < len(blocks):
            raise ConfigError(
                f"--what-if {self.text} cannot come after a change that repeats forward passes",
                "put autocast first, then accumulate, checkpoint or chunk_loss",
            )
        for index in range(len(run.steps)):
            run = _Pass(run, index).cast()
        return run


def parse_precision(text: str, value: str) -> Halved | Autocast:
    """Read a precision.

    Raises:
        ConfigError: There is no such precision.
    """
    if value in _PURE:
        return Halved(text)
    if value in _AUTOCAST:
        return Autocast(text)
    raise ConfigError(
        f"unknown precision {value!r} in --what-if {text}", f"use one of {', '.join((*_PURE, *_AUTOCAST))}"
    )


class _Pass:
    """Forward and backward before one step, on their way to autocast."""

    def __init__(self, run: ChangedRun, index: int) -> None:
        self.run = run
        self.batch = run.micro_batches[index]
        self.backward = run.backwards[index]
        self.workload = run.workload
        self.sizes = run.workload.size_bytes.copy()
        self.free_ns = run.workload.free_ns.copy()
        parameters = run.parameters(run.steps[index])
        self.parameters = {each.name: each for each in parameters}
        self.accumulated_ns = {
            each.parameter.gradient: each.node.begin_ns for each in arrivals(run, self.backward, parameters)
        }
        self.added: list[tuple[int, int, int, int]] = []  # size, begin, end, row with the rest
        self.alloc_ns = run.workload.alloc_ns.copy()
        self.half_of: dict[int, bool] = {}
        self.input_cast: set[int] = set()

    def cast(self) -> ChangedRun:
        inside = (self.workload.alloc_ns >= self.batch.begin_ns) & (
            self.workload.alloc_ns < self.batch.end_ns
        )
        rows = np.flatnonzero(inside & (self.workload.category != Category.WORKSPACE))
        self._forward(rows[self.workload.phase[rows] == Phase.FORWARD])
        self._backward(rows[self.workload.phase[rows] == Phase.BACKWARD])
        changed = self.workload.with_columns(
            size_bytes=self.sizes, alloc_ns=self.alloc_ns, free_ns=self.free_ns
        )
        run = self.run.with_workload(concatenated([changed]))
        if not self.added:
            return run
        size, begin, end, like = (np.array(column, np.int64) for column in zip(*self.added, strict=True))
        like_rows = self.workload.select(like)
        # at one time: in the order given, before the block that is made from them
        return run.with_blocks(
            size_bytes=size,
            alloc_ns=begin,
            free_ns=end,
            category=np.full(len(size), Category.ACTIVATION),
            phase=like_rows.phase,
            iteration=like_rows.iteration,
            operator=like_rows.operator,
            root_operator=like_rows.root_operator,
            module=like_rows.module,
            source_line=like_rows.source_line,
        )

    def _forward(self, rows: NDArray[np.intp]) -> None:
        workload = self.workload
        half, stream_is_float32, linear_input, before = False, False, -1, ""
        current, started = self._input(), False
        for root, group in groupby(rows.tolist(), key=lambda row: int(workload.root_operator[row])):
            made = list(group)
            name = _operator_name(self.run, root)
            main = self._results(name, made)
            if name.startswith(_LOWERED):
                started = True
                given = linear_input if before == name == "aten::linear" else current if not half else -1
                linear_input = given
                self._cast_weights(made[0], saved=given != self._input() or given < 0)
                self._cast_input(given, made[0], root)
                half = True
            elif name.startswith(_FLOAT32):
                stream_is_float32 |= not started and name.startswith("aten::embedding")
                if half and name.startswith(_NORMS):
                    self._add(2 * int(self.sizes[current]), made[0], int(self.free_ns[current]))
                half = False
            elif name.startswith(_SUMS):
                half = half and not stream_is_float32
            self.half_of[root] = half
            if half:
                for row in main:
                    self.sizes[row] //= 2
            current, before = main[-1], name

    def _input(self) -> int:
        """Return the row of the floating batch, -1 = none."""
        workload = self.workload
        arrived = (workload.category == Category.INPUT) & (workload.alloc_ns >= self.batch.begin_ns)
        rows = np.flatnonzero(arrived & (workload.alloc_ns < self.backward.begin_ns))
        return next((row for row in rows.tolist() if _is_float32(self.run, row)), -1)

    def _results(self, name: str, rows: list[int]) -> list[int]:
        """Return the blocks with results in the dtype of the operator, not statistics, masks or indices."""
        sizes = self.workload.size_bytes[rows]
        if "max_pool" in name:
            return [rows[int(np.argmin(sizes))]]
        if "dropout" in name:
            return [rows[0]]
        return [row for row, size in zip(rows, sizes, strict=True) if size == sizes.max()]

    def _cast_input(self, given: int, row: int, root: int) -> None:
        if given < 0:
            return
        workload = self.workload
        ends_ns = int(workload.free_ns[given])
        if workload.category[given] != Category.INPUT:
            self.input_cast.add(root)
        elif ends_ns > self.batch.end_ns:
            # saved for the gradient of the weight, which comes with the last node
            ends_ns = self.batch.end_ns - 1
        self._add(int(workload.size_bytes[given]) // 2, row, max(ends_ns, self._born(row) + 1))
        if _operator_name(self.run, int(workload.root_operator[given])).startswith(_NORMS):
            self.free_ns[given] = min(int(self.free_ns[given]), self._born(row) + 1)

    def _cast_weights(self, row: int, *, saved: bool) -> None:
        """Add casts of the weights in the order in which C++ evaluates arguments: the last one first."""
        module = int(self.workload.module[row])
        path = self.run.recorded.attribution.modules[module] if module >= 0 else ""
        for kind in ("bias", "weight"):
            parameter = self.parameters.get(f"{path}.{kind}")
            if parameter is not None:
                needed = saved and kind == "weight"
                ends_ns = self._node_end(parameter) if needed else self.backward.begin_ns
                self._add(parameter.size_bytes // 2, row, ends_ns)

    def _node_end(self, parameter: Parameter) -> int:
        """Return when the node that computes the gradient of a parameter ends."""
        born = self._born(parameter.gradient)
        nodes = self.run.engine_nodes(self.backward)
        return max((node.end_ns for _, node in nodes if node.begin_ns <= born), default=self.backward.end_ns)

    def _backward(self, rows: NDArray[np.intp]) -> None:
        for row in rows.tolist():
            root = _linked_root(self.run, row)
            if not self.half_of.get(root, False) and not self._ends_in_half(row):
                continue
            size, born = int(self.sizes[row]), self._born(row)
            if row in self.accumulated_ns:
                if not _operator_name(self.run, root).startswith(_LOWERED):
                    continue
                # computed in half, copied to float32 right before it is accumulated
                self.alloc_ns[row] = max(born, self.accumulated_ns[row])
                self._add(size // 2, row, int(self.alloc_ns[row]) + 1)
            elif root in self.input_cast:
                self._add(size // 2, row, born + 1)
            else:
                self.sizes[row] //= 2

    def _ends_in_half(self, row: int) -> bool:
        """Return whether it is the gradient of a loss's input, which came from an operator in half."""
        return (
            _operator_name(self.run, int(self.workload.operator[row])) == "aten::_log_softmax_backward_data"
        )

    def _add(self, size: int, row: int, end_ns: int) -> None:
        self.added.append((size, self._born(row), end_ns, row))

    def _born(self, row: int) -> int:
        return int(self.workload.alloc_ns[row])


def _require_float32(run: ChangedRun) -> None:
    """Require that the dtypes of named tensors and of inputs are recorded, and that none is half already."""
    trace = run.recorded.trace
    used = np.unique(trace.events.input_types)
    texts = [trace.names[int(name)] for name in used[used >= 0]]
    if not any("float" in text for text in texts):
        raise run.refusal("it does not hold the types of inputs; capture with --mode real")
    if not run.named_gradients:
        raise run.refusal("it does not name gradients")
    if any("c10::Half" in text or "c10::BFloat16" in text for text in texts):
        raise run.refusal("part of it already runs in half precision")


def _operator_name(run: ChangedRun, operator: int) -> str:
    trace = run.recorded.trace
    return trace.names[int(trace.events.name[operator])] if operator >= 0 else ""


def _linked_root(run: ChangedRun, row: int) -> int:
    """Return the outermost forward operator that a block of the backward pass belongs to, -1 = none."""
    block = int(run.workload.block[row])
    if block < 0:
        return -1
    operator = int(run.recorded.attribution.forward_link[block])
    return [-1, *_upwards(run, operator)][-1]


def _upwards(run: ChangedRun, operator: int) -> Iterator[int]:
    """Yield an operator and those around it, innermost first."""
    while operator >= 0:
        yield operator
        operator = int(run.recorded.operators.parent[operator])


def _is_float32(run: ChangedRun, row: int) -> bool:
    tensor = int(run.workload.tensor[row])
    if tensor >= 0:
        tensors = run.recorded.notes.tensors
        return tensors.dtype[tensor] == "float32" and not tensors.name[tensor].endswith(".step")
    if run.workload.category[row] == Category.WORKSPACE:
        return False
    if run.workload.block[row] < 0:  # block of another optimizer, whose step counters stay
        return bool(run.workload.size_bytes[row] > _COUNTER_BYTES)
    for operator in _upwards(run, int(run.workload.operator[row])):
        types = set(run.recorded.operators.input_types(operator))
        if types & OF_PROFILER.keys():
            return "float" in types and not _makes_no_floats(run, row)
    # the profiler does not record the types of lists of tensors: cat, stack and the backward of split
    return bool(run.workload.operator[row] >= 0)


def _makes_no_floats(run: ChangedRun, row: int) -> bool:
    """Return whether results of floating inputs are not floating: indices of pooling and masks of dropout."""
    workload = run.workload
    name = _operator_name(run, int(workload.operator[row]))
    same = np.flatnonzero(workload.root_operator == workload.root_operator[row])
    if "max_pool" in name and "backward" not in name:
        return bool(workload.size_bytes[row] > workload.size_bytes[same].min())
    if "native_dropout" in name and "backward" not in name:
        return bool(workload.size_bytes[row] < workload.size_bytes[same].max())
    return name in ("aten::eq", "aten::ne", "aten::gt", "aten::ge", "aten::lt", "aten::le", "aten::argmax")


def _largest_of_operator(run: ChangedRun) -> NDArray[np.int64]:
    """Return the size of the largest block of each block's outermost operator."""
    roots = run.workload.root_operator
    largest = np.zeros(int(roots.max(initial=-1)) + 2, np.int64)
    np.maximum.at(largest, roots, run.workload.size_bytes)
    return largest[roots]
