"""What was launched on a GPU: a row per launch, in launch order, as columns.

A launch is of a kernel whose grid, block and resources are known (``library_call`` = -1), or a call of a
library that hides its kernels (cuBLAS, cuDNN and the like), which has a row in ``Launches.library_calls`` and
no resources until a model gives them.
"""

from __future__ import annotations

from dataclasses import field, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from xmem.records import dataclass

NONE = -1


class Known(IntEnum):
    """How the resources of a launch are known.

    ``EXACT``: from the kernel's own code, or from a recording. ``MODELLED``: a model said so. ``UNKNOWN``:
    not at all; registers, and for library calls everything, are -1.
    """

    EXACT = 0
    MODELLED = 1
    UNKNOWN = 2


@dataclass(frozen=True)
class LibraryCalls:
    """Distinct calls of libraries that hide their kernels, a row each.

    Texts are rows of ``Launches.strings``.

    Attributes:
        function: int32, the function that was called, such as ``cublasGemmEx`` or ``cudnnBackendExecute``.
        family: int32, what it computes: ``gemm``, ``gemv``, ``convolution``, ``convolution_data_gradient``,
            ``convolution_filter_gradient``, ``attention``, ``attention_gradient``, ``normalization``,
            ``recurrent``; -1 = other.
        sizes: int64, shape (n, 4): m, n, k and batch of a product of matrices (column-major, as cuBLAS takes
            them), else -1.
        layout: int32, for products the transpositions of A and B, such as ``tn``; for convolutions ``nchw``
            or ``nhwc``; -1 = unknown.
        dtypes: int32, shape (n, 4): of A (or the input), B (or the filter), C (or the output), and of the
            arithmetic, such as ``bfloat16`` and ``float32``; -1 = unknown.
        problem: int32, a JSON object with whatever else is known; -1 = nothing. Of products
            ``leading_dimensions`` of A, B and C and ``epilogue``; of convolutions ``input``, ``filter``,
            ``output``, ``stride``, ``padding``, ``dilation``; of attention ``query`` and ``key``; of batch
            normalization ``input`` and ``mode``; of recurrent networks ``input`` (steps, batch, features),
            ``cell``, ``hidden``, ``layers``, ``directions``; of a graph ``engine``, as cuDNN's heuristics
            chose it, and where it has more operations ``operations``.
    """

    function: NDArray[np.int32]
    family: NDArray[np.int32]
    sizes: NDArray[np.int64]
    layout: NDArray[np.int32]
    dtypes: NDArray[np.int32]
    problem: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.function)

    @staticmethod
    def none() -> LibraryCalls:
        """Return a table without rows."""
        texts = np.empty(0, np.int32)
        pairs = np.empty((0, 4), np.int32)
        return LibraryCalls(texts, texts, np.empty((0, 4), np.int64), texts, pairs, texts)


@dataclass(frozen=True)
class Launches:
    """Launches in the order of the program, a row each. -1 = none or unknown.

    Attributes:
        strings: The texts that ``name``, ``operator``, ``module`` and ``library_calls`` point into.
        name: int32, name of the kernel as a profiler prints it; of a library call, the function.
        grid: int32, shape (n, 3): blocks.
        block: int32, shape (n, 3): threads.
        dynamic_shared: int32, bytes of shared memory asked for at the launch.
        static_shared: int32, bytes of shared memory that the code declares.
        registers: int32, per thread.
        cluster: int32, blocks per cluster; 0 = no cluster.
        stream: int32, streams numbered in the order of their first launch.
        operator: int32, the innermost recorded operator that launched it.
        module: int32, the innermost module.
        begin_ns: int64, on the clock of the trace.
        duration_ns: int64.
        known: uint8, a ``Known``.
        library_call: int32, row of ``library_calls``; -1 = a kernel.
        library_calls: Distinct calls of libraries.
    """

    strings: tuple[str, ...]
    name: NDArray[np.int32]
    grid: NDArray[np.int32]
    block: NDArray[np.int32]
    dynamic_shared: NDArray[np.int32]
    static_shared: NDArray[np.int32]
    registers: NDArray[np.int32]
    cluster: NDArray[np.int32]
    stream: NDArray[np.int32]
    operator: NDArray[np.int32]
    module: NDArray[np.int32]
    begin_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    known: NDArray[np.uint8]
    library_call: NDArray[np.int32]
    library_calls: LibraryCalls = field(default_factory=LibraryCalls.none)

    def __len__(self) -> int:
        return len(self.name)

    @property
    def threads(self) -> NDArray[np.int64]:
        """Threads per block."""
        threads: NDArray[np.int64] = self.block.prod(axis=1, dtype=np.int64)
        return threads

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Blocks of the grid; a dimension that a trace prints as 0 counts as 1."""
        blocks: NDArray[np.int64] = np.maximum(self.grid, 1).prod(axis=1, dtype=np.int64)
        return blocks

    @property
    def shared_bytes(self) -> NDArray[np.int64]:
        """Static and dynamic shared memory of a block."""
        return np.maximum(self.static_shared, 0).astype(np.int64) + np.maximum(self.dynamic_shared, 0)

    def text(self, row: int) -> str:
        """Return a text; the empty one for -1."""
        return "" if row < 0 else self.strings[row]

    def rows(self, chosen: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Launches:
        """Return some of the launches; the table of library calls stays whole."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in PER_LAUNCH})


PER_LAUNCH = (
    "name",
    "grid",
    "block",
    "dynamic_shared",
    "static_shared",
    "registers",
    "cluster",
    "stream",
    "operator",
    "module",
    "begin_ns",
    "duration_ns",
    "known",
    "library_call",
)
"""The columns of ``Launches`` with a row per launch."""
