"""A cross entropy computed in chunks, so that not all logits exist at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xmem.errors import ConfigError
from xmem.records import dataclass
from xmem.run.workload import Workload, concatenated
from xmem.text.numbers import whole_number
from xmem.trace.attribution import Category, Phase
from xmem.trace.blocks import NEVER
from xmem.whatif.backward_nodes import BackwardNodes, Pass
from xmem.whatif.changed_run import ChangedRun, Span

_CROSS_ENTROPY = ("NllLossBackward0", "NllLoss2DBackward0")
_LINEAR = ("MmBackward0", "AddmmBackward0")
_ON_LOGITS = ("LogSoftmaxBackward0",)
_SCALAR_BYTES = 512  # this size and below: losses and counts, which are not cut


@dataclass(frozen=True)
class ChunkedLoss:
    """``chunk_loss=N``: the last linear layer and the cross entropy in N chunks of rows, each checkpointed.

    Everything from the beginning of the linear layer to the end of the loss is computed N times, each with
    1/N of the rows, and once more before its part of the backward pass. Gradients of the layer's parameters
    from the first two chunks make room for their sum, to which those of the others are added; gradients of
    its input wait for those of the other chunks and are concatenated. The input stays until then. The sum of
    the chunks' losses is not counted: a few blocks of 512 bytes.
    """

    text: str
    count: int

    def __call__(self, run: ChangedRun) -> ChangedRun:
        """Cut the loss of every pass.

        Raises:
            TraceError: No backward pass begins with a cross entropy over a linear layer.
            ConfigError: Forward passes were repeated before.
        """
        run.require_not_accumulated(self.text)
        nodes = BackwardNodes.of(run)
        found = losses(nodes)
        if not found:
            raise run.refusal("no backward pass begins with a cross entropy over a linear layer")
        if self.count == 1:
            return run
        for loss in reversed(found):  # the last first: room does not move anything before it
            run = self._cut(run, nodes, loss)
        return run

    def _cut(self, run: ChangedRun, nodes: BackwardNodes, loss: Loss) -> ChangedRun:
        """Put the first chunk where the whole was, and the others into room made for them."""
        blocks = _Blocks.of(run.workload, nodes, loss, self.count)
        others = self.count - 1
        forward_ns = loss.forward.end_ns - loss.forward.begin_ns + 1
        chunk_ns = forward_ns + loss.backward.end_ns - loss.backward.begin_ns + 2
        moved = run.with_rooms(
            [
                (loss.forward.end_ns, others * forward_ns),
                (loss.backward.begin_ns, forward_ns),
                (loss.backward.end_ns, others * chunk_ns + 2),
            ]
        )
        again_ns = loss.backward.begin_ns + others * forward_ns
        others_ns = loss.backward.end_ns + self.count * forward_ns
        summed_ns = others_ns + chunk_ns - 2
        joined_ns = others_ns + others * chunk_ns

        forward = blocks.forward_chunk(loss)
        again = blocks.chunk_again(loss, forward_ns)
        backward = blocks.backward_chunk(loss, forward_ns)
        parts = [_at(forward, loss.forward.end_ns + number * forward_ns) for number in range(others)]
        parts.append(_at(again, again_ns))
        first = _at(backward, again_ns)
        of_input, of_parameter = blocks.input_gradient[blocks.backward], blocks.of_parameter[blocks.backward]
        added_ns = np.where(of_parameter, summed_ns + 1, first.free_ns)
        parts.append(first.with_columns(free_ns=added_ns).select(of_input | of_parameter))
        for number in range(others):
            begin_ns = others_ns + number * chunk_ns
            parts += [_at(again, begin_ns), _at(backward, begin_ns)]

        workload = moved.workload
        free_ns, alloc_ns = workload.free_ns.copy(), workload.alloc_ns.copy()
        free_ns[blocks.forward] = np.minimum(run.workload.free_ns[blocks.forward], loss.forward.end_ns)
        free_ns[blocks.input] = joined_ns
        alloc_ns[blocks.input_gradient] = joined_ns
        alloc_ns[blocks.of_parameter] = summed_ns
        whole = workload.with_columns(
            alloc_ns=alloc_ns,
            free_ns=free_ns,
            size_bytes=np.where(blocks.input_gradient, workload.size_bytes, blocks.size_bytes),
        )
        waiting = [part.with_columns(free_ns=np.minimum(part.free_ns, joined_ns + 1)) for part in parts]
        return moved.with_workload(concatenated([whole, *waiting]))


@dataclass(frozen=True)
class Loss:
    """A linear layer and the cross entropy over it, in one pass.

    Attributes:
        forward: Span from the beginning of the linear layer to the end of the loss.
        backward: Span from the beginning of the loss's node to the end of the linear layer's.
        nodes: Nodes of the backward span, by index.
    """

    forward: Span
    backward: Span
    nodes: range


def losses(nodes: BackwardNodes) -> list[Loss]:
    """Return the cross entropies over linear layers with which backward passes begin."""
    found = (_loss(nodes, each) for each in nodes.passes)
    return [loss for loss in found if loss is not None]


def _loss(nodes: BackwardNodes, backward: Pass) -> Loss | None:
    first = None
    for index in range(backward.nodes.start, backward.nodes.stop):
        name = nodes.name_of(index)
        if first is None:
            if name in _CROSS_ENTROPY:
                first = index
        elif name in _LINEAR and nodes.forward_begin_ns[index] >= 0:
            return Loss(
                Span(int(nodes.forward_begin_ns[index]), int(nodes.forward_end_ns[first])),
                Span(int(nodes.begin_ns[first]), int(nodes.end_ns[index])),
                range(first, index + 1),
            )
        elif nodes.saves[index] and name not in _ON_LOGITS:
            return None
    return None


@dataclass(frozen=True)
class _Blocks:
    """The blocks of a loss.

    Attributes:
        workload: All blocks of the run, as recorded.
        size_bytes: int64, sizes of all blocks: those that grow with the rows have the size of one chunk.
        forward: int64, rows that the forward pass makes.
        saved: bool, whether the backward pass frees these rows.
        backward: int64, rows that the backward pass makes.
        input: int64, rows that existed before and that the backward pass frees.
        input_gradient: bool, for all blocks: whether it is the gradient of the layer's input.
        of_parameter: bool, for all blocks: whether it is a gradient of the layer's parameters.
    """

    workload: Workload
    size_bytes: NDArray[np.int64]
    forward: NDArray[np.intp]
    saved: NDArray[np.bool_]
    backward: NDArray[np.intp]
    input: NDArray[np.intp]
    input_gradient: NDArray[np.bool_]
    of_parameter: NDArray[np.bool_]

    @classmethod
    def of(cls, workload: Workload, nodes: BackwardNodes, loss: Loss, count: int) -> _Blocks:
        forward, backward = _born(workload, loss.forward), _born(workload, loss.backward)
        before = np.flatnonzero(workload.alloc_ns < loss.forward.begin_ns)
        input_ = before[np.isin(nodes.holding(workload.free_ns[before]), loss.nodes)]
        left = np.zeros(len(workload), np.bool_)
        left[backward] = workload.free_ns[backward] > loss.backward.end_ns
        like_input = np.isin(workload.size_bytes, workload.size_bytes[input_])
        of_parameter = left & ((workload.category == Category.GRADIENT) | ~like_input)
        grows = np.zeros(len(workload), np.bool_)
        grows[forward] = grows[backward] = True
        grows &= ~of_parameter & (workload.size_bytes > _SCALAR_BYTES)
        return cls(
            workload=workload,
            size_bytes=np.where(grows, -(-workload.size_bytes // count), workload.size_bytes),
            forward=forward,
            saved=np.isin(nodes.holding(workload.free_ns[forward]), loss.nodes),
            backward=backward,
            input=input_,
            input_gradient=left & grows,
            of_parameter=of_parameter,
        )

    def forward_chunk(self, loss: Loss) -> Workload:
        """Return the blocks that a chunk's forward pass makes, from time 0 on."""
        begin_ns, end_ns = loss.forward.begin_ns, loss.forward.end_ns
        chunk = self._chunk(self.forward)
        return chunk.with_columns(
            alloc_ns=chunk.alloc_ns - begin_ns, free_ns=np.minimum(chunk.free_ns, end_ns) - begin_ns
        )

    def chunk_again(self, loss: Loss, forward_ns: int) -> Workload:
        """Return the same for the backward pass, which begins ``forward_ns`` later and needs saved blocks."""
        chunk = self.forward_chunk(loss)
        saved_ns = self.workload.free_ns[self.forward] - loss.backward.begin_ns + forward_ns
        phase = np.full(len(chunk), Phase.BACKWARD, chunk.phase.dtype)
        return chunk.with_columns(phase=phase, free_ns=np.where(self.saved, saved_ns, chunk.free_ns))

    def backward_chunk(self, loss: Loss, forward_ns: int) -> Workload:
        """Return a chunk's backward blocks, ``forward_ns`` after time 0; its input's gradient stays."""
        begin_ns, end_ns = loss.backward.begin_ns - forward_ns, loss.backward.end_ns
        chunk = self._chunk(self.backward)
        end_of_ns = end_ns + self.of_parameter[self.backward]  # once they are added
        free_ns = np.minimum(chunk.free_ns, end_of_ns) - begin_ns
        return chunk.with_columns(
            alloc_ns=chunk.alloc_ns - begin_ns,
            free_ns=np.where(self.input_gradient[self.backward], NEVER, free_ns),
        )

    def _chunk(self, rows: NDArray[np.intp]) -> Workload:
        chunk = self.workload.select(rows)
        tensor = np.full(len(chunk), -1, chunk.tensor.dtype)
        return chunk.with_columns(size_bytes=self.size_bytes[rows], tensor=tensor)


def _born(workload: Workload, span: Span) -> NDArray[np.intp]:
    """Return the blocks made within a span, without permanent ones."""
    inside = (workload.alloc_ns >= span.begin_ns) & (workload.alloc_ns < span.end_ns)
    return np.flatnonzero(inside & ((workload.category != Category.WORKSPACE) | (workload.free_ns != NEVER)))


def _at(chunk: Workload, time_ns: int) -> Workload:
    """Move a chunk that begins at time 0 to another time."""
    free_ns = np.where(chunk.free_ns == NEVER, NEVER, np.minimum(chunk.free_ns, NEVER >> 1) + time_ns)
    return chunk.with_columns(alloc_ns=chunk.alloc_ns + time_ns, free_ns=free_ns)


def parse_chunked_loss(text: str, value: str) -> ChunkedLoss:
    """Read a number of chunks.

    Raises:
        ConfigError: The text is not such a number.
    """
    chunks = whole_number(value)
    if not chunks:
        raise ConfigError(f"--what-if {text} is invalid", "use a number of chunks, such as chunk_loss=8")
    return ChunkedLoss(text, chunks)
