"""Workspaces of cuSOLVER's dense solvers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from xmem_measure.parts.libraries.asked import Functions, Table, wide

_SIDES = (
    *(
        1,
        2,
        3,
        4,
        5,
        7,
        8,
        12,
        15,
        16,
        17,
        24,
        31,
        32,
        33,
        40,
        48,
        50,
        63,
        64,
        65,
        80,
        96,
        100,
        127,
        128,
        129,
        160,
    ),
    *(
        192,
        200,
        255,
        256,
        257,
        300,
        320,
        384,
        400,
        480,
        500,
        511,
        512,
        513,
        600,
        640,
        768,
        800,
        1000,
        1023,
        1024,
    ),
    *(
        1025,
        1200,
        1280,
        1500,
        1536,
        1600,
        2000,
        2047,
        2048,
        2049,
        2500,
        3000,
        3072,
        4000,
        4096,
        5000,
        6000,
        8192,
    ),
)
_BATCHES = (1, 2, 4, 10, 32, 100)
_LETTERS = {"S": (0, 0), "D": (1, 1), "C": (4, 0), "Z": (5, 1)}


def _shapes() -> list[tuple[int, int]]:
    """Rows and columns: square, tall and wide."""
    tall = [(2 * side, side) for side in _SIDES[::2]] + [(7 * side + 1, side) for side in _SIDES[::5]]
    return [(side, side) for side in _SIDES] + tall + [(n, m) for m, n in tall]


def tables(config: dict[str, Any]) -> Iterator[Table]:
    library = Functions("libcusolver")
    letter = config["type"]
    solver = _Solver(library, letter)
    names = {"sy": "he", "or": "un"} if letter in "CZ" else {}
    sy, orthogonal = names.get("sy", "sy"), names.get("or", "or")
    yield from solver.old(sy, orthogonal)
    yield from solver.wide()


class _Solver:
    """cuSOLVER's queries with one type of numbers. No query reads a matrix."""

    def __init__(self, library: Functions, letter: str) -> None:
        self._library, self._letter = library, letter
        self._type, self._real = _LETTERS[letter]
        self._handle, self._params = ctypes.c_void_p(), ctypes.c_void_p()
        self._gesvdj, self._syevj = ctypes.c_void_p(), ctypes.c_void_p()
        for name, created in (
            ("cusolverDnCreate", self._handle),
            ("cusolverDnCreateParams", self._params),
            ("cusolverDnCreateGesvdjInfo", self._gesvdj),
            ("cusolverDnCreateSyevjInfo", self._syevj),
        ):
            if status := getattr(library, name)(ctypes.byref(created)):
                raise RuntimeError(f"{name} returned {status}")
        self._matrix = ctypes.c_void_p(torch.empty(1 << 20, device="cuda").data_ptr())

    def old(self, sy: str, orthogonal: str) -> Iterator[Table]:
        """The interface of 32 bits: elements."""
        a, squares = self._matrix, [(side,) for side in _SIDES]
        for name in ("potrf", "potri"):
            yield self._table(name, ("n",), squares, lambda n: (0, n, a, n))
        yield self._table("sytrf", ("n",), squares, lambda n: (n, a, n))
        for name in ("getrf", "geqrf"):
            yield self._table(name, ("m", "n"), _shapes(), lambda m, n: (m, n, a, m))
        tall = [shape for shape in _shapes() if shape[0] >= shape[1]]
        yield self._table("gesvd", ("m", "n"), tall, lambda m, n: (m, n))
        yield self._table(f"{orthogonal}gqr", ("m", "n"), tall, lambda m, n: (m, n, n, a, m, a))
        sided = [(side, m, n) for side in (0, 1) for m, n in _shapes()]
        yield self._table(
            f"{orthogonal}mqr",
            ("side", "m", "n"),
            sided,
            lambda side, m, n: (side, 0, m, n, min(m, n), a, n if side else m, a, a, m),
        )
        jobs = [(job, side) for job in (0, 1) for side in _SIDES]
        yield self._table(f"{sy}evd", ("vectors", "n"), jobs, lambda v, n: (v, 0, n, a, n, a))
        yield self._table(f"{sy}evj", ("vectors", "n"), jobs, lambda v, n: (v, 0, n, a, n, a), (self._syevj,))
        batched = [(job, side, batch) for batch in _BATCHES for job in (0, 1) for side in _SIDES[:40]]
        yield self._table(
            f"{sy}evjBatched",
            ("vectors", "n", "batch"),
            batched,
            lambda v, n, _: (v, 0, n, a, n, a),
            lambda _, __, batch: (self._syevj, batch),
        )
        decompositions = [(job, econ, m, n) for job in (0, 1) for econ in (0, 1) for m, n in _shapes()]
        yield self._table(
            "gesvdj",
            ("vectors", "economic", "m", "n"),
            decompositions,
            lambda v, e, m, n: (v, e, m, n, a, m, a, a, m, a, n),
            (self._gesvdj,),
        )
        small = [(job, m, n, b) for b in _BATCHES for job in (0, 1) for m, n in _shapes() if max(m, n) <= 32]
        yield self._table(
            "gesvdjBatched",
            ("vectors", "m", "n", "batch"),
            small,
            lambda v, m, n, _: (v, m, n, a, m, a, a, m, a, n),
            lambda _, __, ___, batch: (self._gesvdj, batch),
        )
        strided = [(job, m, n, b) for b in _BATCHES for job in (0, 1) for m, n in tall if m <= 1024]
        yield self._table(
            "gesvdaStridedBatched",
            ("vectors", "m", "n", "batch"),
            strided,
            lambda v, m, n, _: (
                *(v, n, m, n, a, m, wide(m * n), a, wide(n)),
                *(a, m, wide(m * n), a, n, wide(n * n)),
            ),
            lambda _, __, ___, batch: (batch,),
        )

    def wide(self) -> Iterator[Table]:
        """The interface of 64 bits: bytes on the device, and on the host."""
        a, t, r = self._matrix, self._type, self._real
        squares = [(side,) for side in _SIDES]
        yield self._wide_table("Xpotrf", ("n",), squares, lambda n: (0, wide(n), t, a, wide(n), t))
        for name in ("Xgetrf", "Xgeqrf"):
            tau = (t, a) if name == "Xgeqrf" else ()
            yield self._wide_table(
                name,
                ("m", "n"),
                _shapes(),
                lambda m, n, tau=tau: (wide(m), wide(n), t, a, wide(m), *tau, t),
            )
        jobs = [(job, side) for job in (0, 1) for side in _SIDES]
        yield self._wide_table(
            "Xsyevd", ("vectors", "n"), jobs, lambda v, n: (v, 0, wide(n), t, a, wide(n), r, a, t)
        )
        batched = [(job, side, batch) for batch in _BATCHES for job in (0, 1) for side in _SIDES[:52]]
        yield self._wide_table(
            "XsyevBatched",
            ("vectors", "n", "batch"),
            batched,
            lambda v, n, _: (v, 0, wide(n), t, a, wide(n), r, a, t),
            lambda _, __, batch: (wide(batch),),
        )
        decompositions = [(ord(job), m, n) for job in "NSA" for m, n in _shapes() if m >= n]
        yield self._wide_table(
            "Xgesvd",
            ("job", "m", "n"),
            decompositions,
            lambda job, m, n: (
                *(ctypes.c_byte(job), ctypes.c_byte(job), wide(m), wide(n), t, a, wide(m)),
                *(r, a, t, a, wide(m), t, a, wide(n), t),
            ),
        )
        general = [(job, side) for job in (0, 1) for side in _SIDES[:52]]
        w = {0: 4, 1: 5}.get(t, t)
        yield self._wide_table(
            "Xgeev",
            ("vectors", "n", "values_type"),
            [(job, side, kind) for kind in sorted({t, w}) for job, side in general],
            lambda v, n, kind: (
                *(0, v, wide(n), t, a, wide(n), kind, a),
                *(t, a, wide(n), t, a, wide(n), t),
            ),
        )
        systems = [(side, columns) for columns in (1, 16, 300) for side in _SIDES]
        yield self._wide_table(
            "Xsytrs",
            ("n", "columns"),
            systems,
            lambda n, columns: (0, wide(n), wide(columns), t, a, wide(n), a, t, a, wide(n)),
            params=False,
        )

    def _table(
        self,
        name: str,
        columns: tuple[str, ...],
        asked: Sequence[tuple[int, ...]],
        arguments: Callable[..., tuple[Any, ...]],
        after: Callable[..., tuple[Any, ...]] | tuple[Any, ...] = (),
    ) -> Table:
        """``after`` are the arguments that follow the answer."""
        full = f"cusolverDn{self._letter}{name}_bufferSize"
        table, function = Table(full, (*columns, "elements")), getattr(self._library, full)
        for numbers in asked:
            answer = ctypes.c_int()
            rest = after(*numbers) if callable(after) else after
            status = function(self._handle, *arguments(*numbers), ctypes.byref(answer), *rest)
            table.rows.append([*numbers, -status if status else answer.value])
        return table

    def _wide_table(
        self,
        name: str,
        columns: tuple[str, ...],
        asked: Sequence[tuple[int, ...]],
        arguments: Callable[..., tuple[Any, ...]],
        after: Callable[..., tuple[Any, ...]] = lambda *_: (),
        *,
        params: bool = True,
    ) -> Table:
        full = f"cusolverDn{name}_bufferSize"
        table, function = Table(full, (*columns, "bytes", "host_bytes")), getattr(self._library, full)
        for numbers in asked:
            device, host = ctypes.c_size_t(), ctypes.c_size_t()
            first = (self._handle, self._params) if params else (self._handle,)
            both = (ctypes.byref(device), ctypes.byref(host))
            status = function(*first, *arguments(*numbers), *both, *after(*numbers))
            answers = [-status, -status] if status else [device.value, host.value]
            table.rows.append([*numbers, *answers])
        return table
