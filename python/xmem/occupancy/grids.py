"""How many blocks a kernel is launched with: a rule per kernel, found in recorded launches.

Most kernels take a fixed amount of work per block, of something that the problem says: elements of the
result, rows, tiles of a matrix. Some stop at a number of blocks per multiprocessor and loop. The rule of
a kernel is the one that gives most of its recorded grids exactly.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from xmem.occupancy.problems import Problem, Product

_TILE = re.compile(r"(?:tilesize|[_a-z])(\d{2,3})x(\d{2,3})(?=x|_|$|[^0-9])")
_WORKS = tuple(2**power for power in range(17))
_CAPS = (0, 1, 2, 4, 8, 16, 32)  # blocks per multiprocessor; 0 = none


@dataclass(frozen=True, slots=True)
class Rule:
    """A grid from a problem: ``quantity / work`` rounded up, at most ``cap`` blocks a multiprocessor.

    Attributes:
        quantity: A name in ``quantities_of``.
        work: How much of it a block takes.
        cap: Blocks per multiprocessor at most; 0 = any number.
        fill: Of the capped number, how much is launched: persistent kernels leave out what does not
            divide well.
        share: Share of the recorded grids that the rule gives exactly.
    """

    quantity: str
    work: int = 1
    cap: int = 0
    fill: float = 1.0
    share: float = 1.0

    def blocks(self, quantities: Mapping[str, int], multiprocessors: int) -> int:
        """Return the blocks of the grid."""
        blocks = -(-quantities[self.quantity] // self.work)
        if self.cap and blocks > self.cap * multiprocessors:
            blocks = round(self.cap * multiprocessors * self.fill)
        return max(blocks, 1)


@dataclass(frozen=True, slots=True)
class Observation:
    """A recorded grid: the problem, the blocks, and the GPU's multiprocessors."""

    problem: Problem
    blocks: int
    multiprocessors: int


def is_persistent(kernel: str) -> bool:
    """Return whether the blocks of a kernel loop over tiles, as those of cuBLAS for Hopper and later do."""
    return "sm90" in kernel or "sm100" in kernel or "nvjet" in kernel


def tile_of(kernel: str) -> tuple[int, int] | None:
    """Return rows and columns of C that a block computes, from the name of a library's kernel."""
    found = _TILE.findall(kernel)
    if not found:
        return None
    rows, columns = map(int, found[0])  # what follows is the depth of the pipeline, as in 128x64_64x6
    return rows, columns


def quantities_of(problem: Problem, tile: tuple[int, int] | None) -> dict[str, int]:
    """Return what a grid can be proportional to, with tiles where there is a product and a tile."""
    found = problem.quantities
    product = problem.product
    if product is not None:
        found["elements"] = product.m * product.n * product.batch
        found["products"] = product.batch
        found["m"], found["n"] = product.m * product.batch, product.n * product.batch
        if tile is not None:
            found.update(_tiles(product, tile))
    return found


def _tiles(product: Product, tile: tuple[int, int]) -> dict[str, int]:
    def count(rows: int, columns: int) -> tuple[int, int]:
        return -(-product.m // rows), -(-product.n // columns)

    down, across = count(*tile)
    flipped_down, flipped_across = count(*reversed(tile))
    merged, flipped_merged = (
        -(-product.m // rows) * -(-product.n * product.batch // columns)
        for rows, columns in (tile, tuple(reversed(tile)))
    )
    return {
        "merged tiles": merged,
        "flipped merged tiles": flipped_merged,
        "tiles": down * across * product.batch,
        "flipped tiles": flipped_down * flipped_across * product.batch,
        "swizzled tiles": _swizzled(down) * across * product.batch,
        "flipped swizzled tiles": _swizzled(flipped_down) * flipped_across * product.batch,
        "swizzled across": down * _swizzled(across) * product.batch,
    }


def _swizzled(tiles: int) -> int:
    """Round up to whole groups, as CUTLASS does (``GemmIdentityThreadblockSwizzle``)."""
    group = 8 if tiles >= 6 else 4 if tiles >= 3 else 2 if tiles >= 2 else 1
    return -(-tiles // group) * group


def fit_rule(kernel: str, seen: Sequence[Observation]) -> Rule | None:
    """Return the rule that gives most of the recorded grids exactly; None where none gives half of them."""
    tile = tile_of(kernel)
    distinct = list({(item.problem, item.blocks, item.multiprocessors): item for item in seen}.values())
    numbers = [quantities_of(item.problem, tile) for item in distinct]
    names = sorted(set.intersection(*(set(found) for found in numbers)), key=_preference)
    best: Rule | None = None
    for name in names:
        values = [found[name] for found in numbers]
        for work in (1,) if "tiles" in name or "across" in name or name == "one" else _WORKS:
            for cap in _CAPS:
                rule = Rule(name, work, cap)
                hits = sum(
                    rule.blocks({name: value}, item.multiprocessors) == item.blocks
                    for value, item in zip(values, distinct, strict=True)
                )
                share = hits / len(distinct)
                if share >= 0.5 and (best is None or share > best.share + 1e-9):
                    best = Rule(name, work, cap, share=share)
    if best is None and tile is not None and is_persistent(kernel):
        return _persistent(numbers, distinct)
    return best


def _persistent(numbers: Iterable[Mapping[str, int]], distinct: Sequence[Observation]) -> Rule | None:
    """Fit what stays on the GPU and loops over tiles: as many blocks as multiprocessors, less what
    divides badly."""
    ratios = [
        item.blocks / min(found["tiles"], item.multiprocessors)
        for found, item in zip(numbers, distinct, strict=True)
        if "tiles" in found
    ]
    if not ratios:
        return None
    return Rule("tiles", 1, 1, fill=min(math.fsum(ratios) / len(ratios), 1.0), share=0.0)


_ORDER = ("tiles", "swizzled tiles", "result", "rows", "largest", "total", "first")


def _preference(name: str) -> tuple[int, str]:
    """Order quantities by how natural they are: the first of equals is kept."""
    if "tiles" in name:
        return (int("merged" in name), name)
    return (_ORDER.index(name) + 2 if name in _ORDER else len(_ORDER) + (name == "one") + 2, name)
