"""What an operator was asked to compute, as far as its kernels and their grids depend on it.

Sizes of tensors are elements. ``quantities`` are the numbers that a grid can be proportional to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from xmem.dtypes import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices as cuBLAS takes it: column-major, C (m by n) = A (m by k) times B (k by n).

    Attributes:
        m: Rows of C; what PyTorch calls the columns of its result.
        n: Columns of C.
        k: Length of the sums.
        batch: Products in one call.
        layout: Transpositions of A and B, such as ``tn``; empty when unknown.
        alignment: Largest power of two, at most 8, that divides every leading dimension.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = ""
    alignment: int = 8

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return 2 * self.m * self.n * self.k * self.batch


@dataclass(frozen=True, slots=True)
class Problem:
    """One operator with its inputs.

    Attributes:
        operator: The innermost operator, such as ``aten::addmm``, without the underscore of in-place ones.
        shapes: Of the inputs that are tensors; those of a list one by one.
        dtypes: Of the same, such as ``bfloat16``.
        dense: Whether each is contiguous, as far as recorded.
        product: The product of matrices that it computes; None = it computes none.
        choice: What was chosen for it, as far as that can be known without a GPU: an engine of cuDNN and its
            knobs, by cuDNN's own heuristics, or the algorithm of a recurrent network, by PyTorch; empty =
            unknown.
    """

    operator: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    dense: tuple[bool, ...] = field(default=())
    product: Product | None = None
    choice: str = ""

    @property
    def quantities(self) -> dict[str, int]:
        """Return the numbers that a grid can be proportional to, by name."""
        counts = [math.prod(shape) for shape in self.shapes] or [1]
        first = self.shapes[0] if self.shapes else ()
        largest = max(self.shapes, key=math.prod, default=())
        last = largest[-1] if largest else 1
        exchanged = {
            f"{name} exchanged": _exchanged(shape)
            for name, shape in zip(("first", "second", "third"), self.shapes, strict=False)
            if len(shape) > 2
        }
        return exchanged | {
            "result": math.prod(broadcast(self.shapes)),
            "first": counts[0],
            "largest": max(counts),
            "total": sum(counts),
            "rows": max(counts) // max(last, 1),
            "columns": last,
            "outer": math.prod(first[:2]),
            "selected": counts[-1] * (first[-1] if first else 1),
            "images": math.prod(largest[:1]),
            "channels": largest[1] if len(largest) > 1 else 1,
            "one": 1,
        }

    @property
    def bytes(self) -> int:
        """Bytes of all inputs and of a result as large as they broadcast to."""
        pairs = zip(self.shapes, self.dtypes, strict=False)
        sizes = [math.prod(shape) * ITEM_BYTES.get(dtype, 4) for shape, dtype in pairs]
        if self.product is not None:
            product, size = self.product, ITEM_BYTES.get(self.dtypes[-1] if self.dtypes else "", 4)
            return sum(sizes) + product.m * product.n * product.batch * size
        result = math.prod(broadcast(self.shapes)) * ITEM_BYTES.get(self.dtypes[0] if self.dtypes else "", 4)
        return sum(sizes) + result


_EXCHANGED = 32


def _exchanged(shape: tuple[int, ...]) -> int:
    """Return the squares of 32 by 32 that hold each image's channels by places.

    A kernel that exchanges the two, as from NCHW to NHWC, takes a block for each.
    """
    return shape[0] * -(-shape[1] // _EXCHANGED) * -(-math.prod(shape[2:]) // _EXCHANGED)


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that the inputs broadcast to; that of the largest where they do not broadcast."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            return max(shapes, key=math.prod)
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def alignment_of(*leading: int) -> int:
    """Return the largest power of two, at most 8, that divides all."""
    return math.gcd(8, *leading)
