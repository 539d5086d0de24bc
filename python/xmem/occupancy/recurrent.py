"""What cuDNN launches for a recurrent network, from how its algorithms work.

The standard algorithm multiplies the inputs of several steps at once, and then takes each step with a product
and one element-wise kernel. The algorithm for small states multiplies the inputs of all steps, and runs one
kernel that stays on the GPU for all steps, with a block for each sequence. Appleyard, Kocisky and Blunsom,
"Optimizing Performance of Recurrent Neural Networks on GPUs" (2016), describes the first. How many steps go
together, and what the kernels take, was seen on an H100 with cuDNN 9.19 (``bench/gpu/results``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from xmem.occupancy.problems import Problem, Product, alignment_of

STANDARD = "standard"
SMALL_STATE = "small state"

ALGORITHMS = {0: STANDARD, 1: "persistent", 2: "persistent, compiled", 3: SMALL_STATE}
"""Names of ``cudnnRNNAlgo_t``."""

PERSISTENT_KERNEL = "RNN_blockPersist"
STEP_KERNEL = "elemWiseRNNcell"
"""What the names of the kernels that are no products hold."""

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # by cudnnRNNMode_t: ReLU, tanh, LSTM, GRU
_STEPS_AT_LEAST = 8
_PARTS_AT_MOST = 16
_THREADS = 256


@dataclass(frozen=True, slots=True)
class Part:
    """Something that a recurrent network launches, a number of times.

    Attributes:
        work: A product of matrices; None = a kernel of the library's own.
        times: How often.
        name: Of the kernel, where there is no product.
        threads: Of a block of it.
        registers: Of a thread of it.
        blocks: Of its grid.
    """

    work: Problem | None
    times: int
    name: str = ""
    threads: int = _THREADS
    registers: int = 32
    blocks: int = 1


def is_recurrent(problem: Problem) -> bool:
    """Return whether it is a recurrent network of cuDNN: its last shape holds the number of steps."""
    return problem.operator.startswith("cudnnRNN")


def parts_of(problem: Problem) -> tuple[Part, ...]:
    """Return what a network launches, layer by layer; nothing where the algorithm is not described here.

    Args:
        problem: A forward pass, with the shapes ``(batch, hidden)``, ``(features,)``,
            ``(layers, directions)`` and ``(steps,)``, and the name of the algorithm as its choice.
    """
    function, _, cell = problem.operator.partition(" ")
    known = problem.choice in (STANDARD, SMALL_STATE) and cell.isdecimal() and int(cell) in _GATES
    if function != "cudnnRNNForward" or not known or len(problem.shapes) != 4:
        return ()
    return tuple(_of_layers(problem, _GATES[int(cell)]))


def _of_layers(problem: Problem, gates: int) -> Iterator[Part]:
    (batch, hidden), (features,), (layers, directions), (steps,) = problem.shapes
    together = steps
    if problem.choice == STANDARD:
        together = min(steps, max(_STEPS_AT_LEAST, math.ceil(steps / _PARTS_AT_MOST)))
    for layer in range(layers):
        width = features if layer == 0 else hidden * directions
        inputs = _product(gates * hidden, batch * together, width, problem.dtypes)
        yield Part(inputs, directions * math.ceil(steps / together))
        if problem.choice == SMALL_STATE:
            yield Part(None, directions, PERSISTENT_KERNEL, min(hidden, 1024), 255, batch)
            continue
        yield Part(_product(gates * hidden, batch, hidden, problem.dtypes), directions * steps)
        elements = math.ceil(batch * hidden / _THREADS)
        yield Part(None, directions * steps, STEP_KERNEL, blocks=elements)


def _product(m: int, n: int, k: int, dtypes: tuple[str, ...]) -> Problem:
    """Return a product of weights, ``k`` by ``m``, with ``n`` columns of inputs."""
    product = Product(m, n, k, 1, "tn", alignment_of(k, m))
    return Problem("aten::mm", ((n, k), (k, m)), (dtypes[0], dtypes[-1]), (), product)
