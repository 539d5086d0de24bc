"""A cross entropy in chunks, on a run computed by hand."""

from __future__ import annotations

import pytest

import xmem
from xmem.errors import TraceError
from xmem.estimation.observation import observe
from xmem.estimation.pipeline import run_stages
from xmem.simulation.replay import RequestKind
from xmem.testing.trace_builder import TraceBuilder

MIB = 1 << 20
WEIGHT, HIDDEN, LOGITS, SCALAR = 5 * MIB, 2 * MIB, 8 * MIB, 4
LOSS_NODES = ("NllLossBackward0", "LogSoftmaxBackward0")


def cross_entropy(*, nodes: tuple[str, str] = LOSS_NODES) -> TraceBuilder:
    """A head over HIDDEN: logits, log-probabilities and the loss; then their gradients, and the head's."""
    trace = TraceBuilder().with_metadata(
        device_requests=1, iterations=1, argv=["train.py"], versions={"torch": "2.13.0"}
    )
    trace.alloc(0x1, WEIGHT, 1).tensor("parameter", "Net.head.weight", 0x1, WEIGHT, 2)
    trace.iteration(0, 10, 300).operator("aten::embedding", 12, 16, sequence_number=0).alloc(0x2, HIDDEN, 14)
    trace.operator("aten::mm", 20, 26, sequence_number=1).alloc(0x3, LOGITS, 22)
    trace.operator("aten::log_softmax", 30, 36, sequence_number=2).alloc(0x4, LOGITS, 32).free(0x3, 38)
    trace.operator("aten::nll_loss_forward", 40, 46, sequence_number=3).alloc(0x5, SCALAR, 42)
    trace.backward(nodes[0], 100, 110, sequence_number=3).alloc(0x6, LOGITS, 105)
    trace.backward(nodes[1], 111, 120, sequence_number=2)
    trace.alloc(0x7, LOGITS, 115).free(0x4, 117).free(0x6, 118)
    trace.backward("MmBackward0", 121, 130, sequence_number=1)
    trace.alloc(0x8, WEIGHT, 123).alloc(0x9, HIDDEN, 125).free(0x7, 127).free(0x2, 128)
    trace.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 131, 133)
    trace.backward("EmbeddingBackward0", 134, 140, sequence_number=0).free(0x9, 138)
    trace.tensor("gradient", "Net.head.weight", 0x8, WEIGHT, 145, group=0)
    return trace.annotation("Optimizer.step#SGD.step", 150, 160).free(0x5, 170)


def requests(change: str) -> list[tuple[str, int]]:
    """Kind and size of all requests, in order."""
    stages = run_stages(observe(cross_entropy().bytes()).what_if(change))
    kinds = {int(RequestKind.ALLOC): "alloc", int(RequestKind.FREE): "free"}
    return [
        (kinds[int(kind)], int(stages.workload.size_bytes[block]))
        for kind, block in zip(stages.requests.kind, stages.requests.block, strict=True)
    ]


def test_every_chunk_is_made_twice_and_its_gradients_once() -> None:
    sequence = requests("chunk_loss=2")
    half = LOGITS // 2
    # logits and probabilities, for the loss and again; two gradients; each of two chunks
    assert sequence.count(("alloc", half)) == sequence.count(("free", half)) == 2 * (2 + 2 + 2)
    assert ("alloc", LOGITS) not in sequence
    # the parameter; its gradients from both chunks, and their sum, which stays
    assert sequence.count(("alloc", WEIGHT)) == 1 + 3
    assert sequence.count(("free", WEIGHT)) == 2
    # what comes in, and its gradient: two halves, then whole
    assert sequence.count(("alloc", HIDDEN // 2)) == sequence.count(("free", HIDDEN // 2)) == 2
    assert sequence.count(("alloc", HIDDEN)) == sequence.count(("free", HIDDEN)) == 2


def test_the_peak_is_in_the_second_chunk() -> None:
    def peak(*changes: str) -> int:
        return xmem.estimate(
            cross_entropy().bytes(), what_if=changes, without_policies=["add_cublas_workspaces"]
        ).peak_requested_bytes

    # probabilities and both gradients, beside the loss
    assert peak() == peak("chunk_loss=1") == WEIGHT + HIDDEN + 3 * LOGITS + SCALAR
    # the same of a chunk, beside the first one's gradients; sums of losses are not counted
    chunk = 3 * LOGITS // 2
    assert peak("chunk_loss=2") == WEIGHT + HIDDEN + WEIGHT + HIDDEN // 2 + chunk
    # the sum of two gradients of the weight, beside the parts of HIDDEN's and what comes in
    assert peak("chunk_loss=16") == WEIGHT + HIDDEN + 3 * WEIGHT + 2 * HIDDEN // 16


@pytest.mark.parametrize(
    "nodes", [("MseLossBackward0", "LogSoftmaxBackward0"), ("NllLossBackward0", "PowBackward0")]
)
def test_another_loss_is_refused(nodes: tuple[str, str]) -> None:
    with pytest.raises(TraceError, match="no backward pass begins with a cross entropy over a linear layer"):
        xmem.estimate(cross_entropy(nodes=nodes).bytes(), what_if=["chunk_loss=4"])
