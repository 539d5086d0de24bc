"""Part 8: the work areas that cuFFT, cuSOLVER and cuSPARSE ask for, and what recurrent layers request.

The first three are asked themselves, through ctypes: they answer at once, launch nothing, and answer only where
there is a device. Arguments are those with which PyTorch calls them.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from xmem_measure.columns import pack
from xmem_measure.history import Mark, requests_between
from xmem_measure.meter import loaded_library
from xmem_measure.parts.operators import flags
from xmem_measure.session import Session

# A plan of cuFFT may load a module, and large ones take longer: what is left when the time is over is not asked.
_PATIENCE_S = 25.0
_INT64 = ctypes.c_int64
_POINTER = ctypes.c_void_p


class _Functions:
    """The functions of a library, each where this process finds it: some may precede the library's own."""

    def __init__(self, library: str) -> None:
        self._name = library

    def __getattr__(self, function: str) -> Any:
        found = getattr(loaded_library(self._name, function), function)
        setattr(self, function, found)
        return found


@dataclass
class Table:
    """Answers of a function: numbers that it was asked with, then its own.

    Attributes:
        function: Its name; where several functions together give the answer, the last.
        columns: Names of the numbers, those of the answers last.
        rows: A call a row. A call that was refused has the status, negative, for every answer.
    """

    function: str
    columns: Sequence[str]
    rows: list[list[int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The function's name, and the numbers as packed columns."""
        columns = {name: [row[place] for row in self.rows] for place, name in enumerate(self.columns)}
        return {"function": self.function, "calls": pack(columns)}


def run(config: dict[str, Any], session: Session) -> dict[str, Any]:
    """Ask one library."""
    session.start()
    if config["library"] == "recurrent":
        return {"flags": flags(), "tables": _recurrent(session, config["cell"], config["dtype"])}
    # Its parts are loaded when they are first used.
    torch.empty(1, device=session.meter.device)
    tables = {"cufft": _cufft, "cusolver": _cusolver, "cusparse": _cusparse}[config["library"]](config)
    return {"tables": [table.to_json() for table in tables]}


# --- cuFFT ----------------------------------------------------------------------------------------------------------

# cudaDataType of the real and the complex numbers.
_FFT_TYPES = {"half": (2, 6), "float": (0, 4), "double": (1, 5)}
_FFT_LENGTHS = (
    *range(2, 130),
    *(
        144,
        160,
        169,
        192,
        200,
        211,
        240,
        243,
        251,
        256,
        257,
        288,
        300,
        320,
        343,
        360,
        384,
        400,
        448,
        480,
        500,
        509,
    ),
    *(
        512,
        521,
        576,
        600,
        625,
        640,
        720,
        729,
        768,
        800,
        900,
        960,
        1000,
        1009,
        1021,
        1024,
        1031,
        1080,
        1152,
        1200,
    ),
    *(
        1280,
        1331,
        1440,
        1500,
        1536,
        1600,
        1728,
        1920,
        2000,
        2039,
        2048,
        2053,
        2187,
        2304,
        2400,
        2401,
        2560,
        3000,
    ),
    *(
        3072,
        3125,
        3600,
        3840,
        4000,
        4093,
        4096,
        4099,
        4608,
        4800,
        5000,
        5120,
        6000,
        6144,
        6561,
        7200,
        7680,
        8000,
    ),
    *(
        8191,
        8192,
        8209,
        9600,
        10000,
        12000,
        12288,
        14400,
        15625,
        16000,
        16381,
        16384,
        16411,
        19200,
        20000,
        22050,
    ),
    *(
        24000,
        24576,
        25000,
        32000,
        32768,
        32771,
        40000,
        44100,
        48000,
        50000,
        64000,
        65536,
        65537,
        80000,
        96000,
    ),
    *(100000, 110250, 131072, 160000, 200000, 240000, 262144, 320000, 400000, 441000, 480000, 500000, 524288),
    *(1000000, 1048576, 1048583, 2000000, 2097152, 4194304),
)
_FFT_BATCHES = (1, 2, 3, 8, 16, 37, 64, 256, 1000)
_FFT_SIDES_2D = (
    4,
    8,
    12,
    16,
    24,
    28,
    32,
    48,
    49,
    53,
    56,
    64,
    80,
    96,
    100,
    112,
    128,
    137,
    160,
    192,
    224,
    240,
    256,
)
_FFT_LARGE_SIDES_2D = (
    320,
    384,
    400,
    448,
    480,
    512,
    521,
    640,
    720,
    768,
    1000,
    1024,
    1080,
    1536,
    1920,
    2048,
    4096,
)
_FFT_SIDES_3D = (4, 8, 10, 16, 24, 32, 37, 48, 53, 64, 80, 96, 100, 128, 192, 256)
_MOST_ELEMENTS = 1 << 31


def _cufft(config: dict[str, Any]) -> Iterator[Table]:
    library = _Functions("libcufft")
    real, complex_ = _FFT_TYPES[config["dtype"]]
    kinds = {"c2c": (complex_, complex_), "r2c": (real, complex_), "c2r": (complex_, real)}
    table = Table(
        "cufftXtMakePlanMany", ("input", "output", "rank", "n0", "n1", "n2", "stride", "batch", "bytes")
    )
    deadline = time.monotonic() + _PATIENCE_S
    for kind in config["kinds"]:
        source, target = kinds[kind]
        for sizes, stride, batch in _transforms(config["rank"], kind):
            if time.monotonic() > deadline:
                break
            answer = _plan_bytes(library, source, target, complex_, sizes, stride, batch)
            padded = [*sizes, *[1] * (3 - len(sizes))]
            table.rows.append([source, target, len(sizes), *padded, stride, batch, answer])
    yield table


def _transforms(rank: int, kind: str) -> Iterator[tuple[list[int], int, int]]:
    """Sizes, the distance of neighbours in the last dimension, and batches."""
    if rank == 1:
        for batch in _FFT_BATCHES:
            for length in _FFT_LENGTHS:
                if length * batch <= _MOST_ELEMENTS // 8:
                    yield [length], 1, batch
        if kind == "c2c":
            # Along a dimension that is not the last: neighbours lie as far apart as there are transforms.
            for batch in (8, 64, 1000):
                for length in _FFT_LENGTHS[::3]:
                    if length * batch <= _MOST_ELEMENTS // 8:
                        yield [length], batch, batch
        return
    sides = (*_FFT_SIDES_2D, *_FFT_LARGE_SIDES_2D) if rank == 2 else _FFT_SIDES_3D
    shapes = [[side] * rank for side in sides]
    shapes += [[a, b] if rank == 2 else [a, b, b] for a, b in zip(sides, sides[3:], strict=False)]
    shapes += [[b, a] if rank == 2 else [b, b, a] for a, b in zip(sides, sides[5:], strict=False)]
    for batch in _FFT_BATCHES[:7]:
        for shape in shapes:
            elements = batch
            for side in shape:
                elements *= side
            if elements <= _MOST_ELEMENTS // 8:
                yield shape, 1, batch


def _plan_bytes(
    library: _Functions, source: int, target: int, execution: int, sizes: list[int], stride: int, batch: int
) -> int:
    plan, work = ctypes.c_int(), ctypes.c_size_t()
    if status := library.cufftCreate(ctypes.byref(plan)):
        return -status
    try:
        library.cufftSetAutoAllocation(plan, 0)
        n = (_INT64 * len(sizes))(*sizes)
        # Without an embedding the data is dense, and strides count for nothing.
        embedding = None if stride == 1 else n
        distance = _INT64(1 if stride != 1 else 0)
        layout = (embedding, _INT64(stride), distance)
        status = library.cufftXtMakePlanMany(
            plan,
            len(sizes),
            n,
            *layout,
            source,
            *layout,
            target,
            _INT64(batch),
            ctypes.byref(work),
            execution,
        )
    finally:
        library.cufftDestroy(plan)
    return -status if status else work.value


# --- cuSOLVER -------------------------------------------------------------------------------------------------------

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


def _cusolver(config: dict[str, Any]) -> Iterator[Table]:
    library = _Functions("libcusolver")
    letter = config["type"]
    solver = _Solver(library, letter)
    names = {"sy": "he", "or": "un"} if letter in "CZ" else {}
    sy, orthogonal = names.get("sy", "sy"), names.get("or", "or")
    yield from solver.old(sy, orthogonal)
    yield from solver.wide()


class _Solver:
    """cuSOLVER's queries with one type of numbers. No query reads a matrix."""

    def __init__(self, library: _Functions, letter: str) -> None:
        self._library, self._letter = library, letter
        self._type, self._real = _LETTERS[letter]
        self._handle, self._params = _POINTER(), _POINTER()
        self._gesvdj, self._syevj = _POINTER(), _POINTER()
        for name, created in (
            ("cusolverDnCreate", self._handle),
            ("cusolverDnCreateParams", self._params),
            ("cusolverDnCreateGesvdjInfo", self._gesvdj),
            ("cusolverDnCreateSyevjInfo", self._syevj),
        ):
            if status := getattr(library, name)(ctypes.byref(created)):
                raise RuntimeError(f"{name} returned {status}")
        self._matrix = _POINTER(torch.empty(1 << 20, device="cuda").data_ptr())

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
            lambda v, n, batch: (v, 0, n, a, n, a),
            lambda v, n, batch: (self._syevj, batch),
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
            lambda v, m, n, batch: (v, m, n, a, m, a, a, m, a, n),
            lambda v, m, n, batch: (self._gesvdj, batch),
        )
        strided = [(job, m, n, b) for b in _BATCHES for job in (0, 1) for m, n in tall if m <= 1024]
        yield self._table(
            "gesvdaStridedBatched",
            ("vectors", "m", "n", "batch"),
            strided,
            lambda v, m, n, batch: (
                *(v, n, m, n, a, m, _wide(m * n), a, _wide(n)),
                *(a, m, _wide(m * n), a, n, _wide(n * n)),
            ),
            lambda v, m, n, batch: (batch,),
        )

    def wide(self) -> Iterator[Table]:
        """The interface of 64 bits: bytes on the device, and on the host."""
        a, t, r = self._matrix, self._type, self._real
        squares = [(side,) for side in _SIDES]
        yield self._wide_table("Xpotrf", ("n",), squares, lambda n: (0, _wide(n), t, a, _wide(n), t))
        for name in ("Xgetrf", "Xgeqrf"):
            tau = (t, a) if name == "Xgeqrf" else ()
            yield self._wide_table(
                name,
                ("m", "n"),
                _shapes(),
                lambda m, n, tau=tau: (_wide(m), _wide(n), t, a, _wide(m), *tau, t),
            )
        jobs = [(job, side) for job in (0, 1) for side in _SIDES]
        yield self._wide_table(
            "Xsyevd", ("vectors", "n"), jobs, lambda v, n: (v, 0, _wide(n), t, a, _wide(n), r, a, t)
        )
        batched = [(job, side, batch) for batch in _BATCHES for job in (0, 1) for side in _SIDES[:52]]
        yield self._wide_table(
            "XsyevBatched",
            ("vectors", "n", "batch"),
            batched,
            lambda v, n, batch: (v, 0, _wide(n), t, a, _wide(n), r, a, t),
            lambda v, n, batch: (_wide(batch),),
        )
        decompositions = [(ord(job), m, n) for job in "NSA" for m, n in _shapes() if m >= n]
        yield self._wide_table(
            "Xgesvd",
            ("job", "m", "n"),
            decompositions,
            lambda job, m, n: (
                *(ctypes.c_byte(job), ctypes.c_byte(job), _wide(m), _wide(n), t, a, _wide(m)),
                *(r, a, t, a, _wide(m), t, a, _wide(n), t),
            ),
        )
        general = [(job, side) for job in (0, 1) for side in _SIDES[:52]]
        w = {0: 4, 1: 5}.get(t, t)
        yield self._wide_table(
            "Xgeev",
            ("vectors", "n", "values_type"),
            [(job, side, kind) for kind in sorted({t, w}) for job, side in general],
            lambda v, n, kind: (
                *(0, v, _wide(n), t, a, _wide(n), kind, a),
                *(t, a, _wide(n), t, a, _wide(n), t),
            ),
        )
        systems = [(side, columns) for columns in (1, 16, 300) for side in _SIDES]
        yield self._wide_table(
            "Xsytrs",
            ("n", "columns"),
            systems,
            lambda n, columns: (0, _wide(n), _wide(columns), t, a, _wide(n), a, t, a, _wide(n)),
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
        after: Callable[..., tuple[Any, ...]] = lambda *numbers: (),
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


def _wide(number: int) -> ctypes.c_int64:
    return _INT64(number)


# --- cuSPARSE -------------------------------------------------------------------------------------------------------

_INDEX_32, _INDEX_64 = 2, 3
_ROW_MAJOR, _COLUMN_MAJOR = 2, 1
# Rows, columns, nonzeros in a row.
_SPARSE = [
    (rows, max(int(rows * share), 1), each)
    for rows in (10, 100, 1000, 10_000, 100_000)
    for share in (0.3, 1, 4)
    for each in (1, 3, 10, 64)
    if each <= rows * share
]
_FORMATS = {"csr": {"mm": (0, 4, 6, 12), "mv": (0, 2, 3)}, "coo": {"mm": (0, 1, 2, 3), "mv": (0, 1, 4)}}


def _cusparse(config: dict[str, Any]) -> Iterator[Table]:
    library = _Functions("libcusparse")
    asked = _Sparse(library, config["index"], config["dtype"])
    yield from asked.tables()


class _Sparse:
    """cuSPARSE's queries with one type of indices and numbers; matrices are random, the same in every visit."""

    def __init__(self, library: _Functions, index: str, dtype: str) -> None:
        self._library = library
        self._index, self._torch_index = (
            (_INDEX_32, torch.int32) if index == "int32" else (_INDEX_64, torch.int64)
        )
        self._dtype = getattr(torch, dtype)
        self._type = {"float32": 0, "float64": 1, "bfloat16": 14, "complex64": 4}[dtype]
        self._handle = _POINTER()
        if status := library.cusparseCreate(ctypes.byref(self._handle)):
            raise RuntimeError(f"cusparseCreate returned {status}")
        self._one = ctypes.create_string_buffer(16)
        self._many = torch.empty(1 << 26, device="cuda")

    def tables(self) -> Iterator[Table]:
        size = ("rows", "columns", "nonzeros")
        format_ = ("coo", "algorithm")
        mm = Table("cusparseSpMM_bufferSize", (*format_, *size, "width", "row_major", "bytes"))
        mv = Table("cusparseSpMV_bufferSize", (*format_, *size, "bytes"))
        sddmm = Table("cusparseSDDMM_bufferSize", (*size, "width", "bytes"))
        sv = Table("cusparseSpSV_bufferSize", (*size, "bytes"))
        sm = Table("cusparseSpSM_bufferSize", (*size, "width", "bytes"))
        product = Table("cusparseSpGEMM_compute", (*size, "work_bytes", "compute_bytes", "product_nonzeros"))
        transpose = Table("cusparseCsr2cscEx2_bufferSize", (*size, "bytes"))
        sorts = [
            Table(f"cusparseX{kind}sort_bufferSizeExt", (*size, "bytes")) for kind in ("coo", "csr", "csc")
        ]
        for rows, columns, each in _SPARSE:
            matrix = self._random(rows, columns, each)
            numbers = (rows, columns, matrix.nonzeros)
            for name, algorithms in _FORMATS.items():
                described = matrix.descriptor(name)
                for algorithm in algorithms["mv"]:
                    asked = (int(name == "coo"), algorithm, *numbers)
                    mv.rows.append([*asked, self._mv(described, rows, columns, algorithm)])
                for algorithm in algorithms["mm"]:
                    for width in (1, 16, 128):
                        for row_major in (0, 1):
                            asked = (int(name == "coo"), algorithm, *numbers, width, row_major)
                            mm.rows.append(
                                [*asked, self._mm(described, rows, columns, width, row_major, algorithm)]
                            )
            for width in (1, 16, 128):
                sddmm.rows.append([*numbers, width, self._sddmm(matrix, rows, columns, width)])
                if rows == columns:
                    sm.rows.append([*numbers, width, self._solve(matrix, rows, width)])
            if rows == columns:
                sv.rows.append([*numbers, self._solve(matrix, rows, 0)])
                if rows * each * each <= 1 << 24:
                    product.rows.append([*numbers, *self._product(matrix, rows)])
            if self._index == _INDEX_32:
                transpose.rows.append([*numbers, self._transpose(matrix, rows, columns)])
                for table, kind in zip(sorts, ("coo", "csr", "csc"), strict=True):
                    table.rows.append([*numbers, self._sort(kind, matrix, rows, columns)])
        return iter((mm, mv, sddmm, sv, sm, product, transpose, *sorts))

    def _random(self, rows: int, columns: int, each: int) -> _Matrix:
        generator = torch.Generator().manual_seed(rows + columns + each)
        picked = torch.randint(columns, (rows, each), generator=generator).sort(dim=1).values
        return _Matrix(
            self._library, picked, columns, self._torch_index, self._index, self._dtype, self._type
        )

    def _answer(self, name: str, *arguments: Any, after: tuple[Any, ...] = ()) -> int:
        answer = ctypes.c_size_t()
        status = getattr(self._library, name)(self._handle, *arguments, ctypes.byref(answer), *after)
        return -status if status else answer.value

    def _dense(self, rows: int, columns: int, row_major: int = 0) -> ctypes.c_void_p:
        made = _POINTER()
        leading = columns if row_major else rows
        order = _ROW_MAJOR if row_major else _COLUMN_MAJOR
        where = _POINTER(self._many.data_ptr())
        self._library.cusparseCreateDnMat(
            ctypes.byref(made), _wide(rows), _wide(columns), _wide(leading), where, self._type, order
        )
        return made

    def _vector(self, length: int) -> ctypes.c_void_p:
        made = _POINTER()
        where = _POINTER(self._many.data_ptr())
        self._library.cusparseCreateDnVec(ctypes.byref(made), _wide(length), where, self._type)
        return made

    def _mm(self, matrix: Any, rows: int, columns: int, width: int, row_major: int, algorithm: int) -> int:
        b, c = self._dense(columns, width, row_major), self._dense(rows, width, row_major)
        return self._answer(
            "cusparseSpMM_bufferSize", 0, 0, self._one, matrix, b, self._one, c, self._compute, algorithm
        )

    def _mv(self, matrix: Any, rows: int, columns: int, algorithm: int) -> int:
        x, y = self._vector(columns), self._vector(rows)
        return self._answer(
            "cusparseSpMV_bufferSize", 0, self._one, matrix, x, self._one, y, self._compute, algorithm
        )

    def _sddmm(self, matrix: _Matrix, rows: int, columns: int, width: int) -> int:
        a, b = self._dense(rows, width), self._dense(width, columns)
        c = matrix.descriptor("csr")
        return self._answer("cusparseSDDMM_bufferSize", 0, 0, self._one, a, b, self._one, c, self._compute, 0)

    def _solve(self, matrix: _Matrix, rows: int, width: int) -> int:
        """With a vector where ``width`` is 0."""
        a, state = matrix.descriptor("csr"), _POINTER()
        for attribute in (0, 1):
            self._library.cusparseSpMatSetAttribute(
                a, attribute, ctypes.byref(ctypes.c_int(0)), ctypes.c_size_t(4)
            )
        kind = "SpSM" if width else "SpSV"
        getattr(self._library, f"cusparse{kind}_createDescr")(ctypes.byref(state))
        if width:
            x, y, operations = self._dense(rows, width), self._dense(rows, width), (0, 0)
        else:
            x, y, operations = self._vector(rows), self._vector(rows), (0,)
        # The answer is the last argument here, too.
        return self._answer(
            f"cusparse{kind}_bufferSize", *operations, self._one, a, x, y, self._compute, 0, state
        )

    def _product(self, matrix: _Matrix, rows: int) -> tuple[int, int, int]:
        """A matrix by itself. Only the first step's result says how much the second takes."""
        a, offsets = matrix.descriptor("csr"), torch.empty(rows + 1, device="cuda", dtype=self._torch_index)
        c, state = _POINTER(), _POINTER()
        none = _POINTER()
        self._library.cusparseCreateCsr(
            *(ctypes.byref(c), _wide(rows), _wide(rows), _wide(0), _POINTER(offsets.data_ptr()), none, none),
            *(self._index, self._index, 0, self._type),
        )
        self._library.cusparseSpGEMM_createDescr(ctypes.byref(state))
        same = (0, 0, self._one, a, a, self._one, c, self._compute, 0, state)
        sizes, kept = [], []
        for step in ("workEstimation", "compute"):
            size = ctypes.c_size_t()
            function = getattr(self._library, f"cusparseSpGEMM_{step}")
            if status := function(self._handle, *same, ctypes.byref(size), none):
                return -status, -status, -status
            sizes.append(size.value)
            kept.append(torch.empty(max(size.value, 1), device="cuda", dtype=torch.uint8))
            if status := function(self._handle, *same, ctypes.byref(size), _POINTER(kept[-1].data_ptr())):
                return -status, -status, -status
        counts = [_INT64(), _INT64(), _INT64()]
        self._library.cusparseSpMatGetSize(c, *(ctypes.byref(count) for count in counts))
        return sizes[0], sizes[1], counts[2].value

    def _transpose(self, matrix: _Matrix, rows: int, columns: int) -> int:
        a = matrix.pointers()
        many = _POINTER(self._many.data_ptr())
        return self._answer(
            "cusparseCsr2cscEx2_bufferSize",
            *(rows, columns, matrix.nonzeros, a["values"], a["offsets"], a["columns"]),
            *(many, many, many, self._type, 1, 0, 1),
        )

    def _sort(self, kind: str, matrix: _Matrix, rows: int, columns: int) -> int:
        a = matrix.pointers()
        first = a["rows"] if kind == "coo" else a["offsets"]
        name = f"cusparseX{kind}sort_bufferSizeExt"
        return self._answer(name, rows, columns, matrix.nonzeros, first, a["columns"])

    @property
    def _compute(self) -> int:
        """What is computed with: products of bfloat16 in float."""
        return 0 if self._type == 14 else self._type


class _Matrix:
    """A random sparse matrix on the device, as cuSPARSE describes it."""

    def __init__(
        self,
        library: _Functions,
        picked: torch.Tensor,
        columns: int,
        torch_index: torch.dtype,
        index: int,
        dtype: torch.dtype,
        type_: int,
    ) -> None:
        self._library, self._index, self._type = library, index, type_
        self._rows, each = picked.shape
        self._column_count, self.nonzeros = columns, picked.numel()
        place = {"device": "cuda", "dtype": torch_index}
        self._offsets = (torch.arange(self._rows + 1) * each).to(**place)
        self._row_indices = torch.arange(self._rows).repeat_interleave(each).to(**place)
        self._columns = picked.flatten().to(**place)
        self._values = torch.ones(self.nonzeros, device="cuda", dtype=dtype)

    def pointers(self) -> dict[str, ctypes.c_void_p]:
        tensors = {
            "offsets": self._offsets,
            "rows": self._row_indices,
            "columns": self._columns,
            "values": self._values,
        }
        return {name: _POINTER(tensor.data_ptr()) for name, tensor in tensors.items()}

    def descriptor(self, format_: str) -> ctypes.c_void_p:
        made, at = _POINTER(), self.pointers()
        size = (_wide(self._rows), _wide(self._column_count), _wide(self.nonzeros))
        if format_ == "csr":
            arrays = (at["offsets"], at["columns"], at["values"], self._index, self._index)
            status = self._library.cusparseCreateCsr(ctypes.byref(made), *size, *arrays, 0, self._type)
        else:
            arrays = (at["rows"], at["columns"], at["values"], self._index)
            status = self._library.cusparseCreateCoo(ctypes.byref(made), *size, *arrays, 0, self._type)
        if status:
            raise RuntimeError(f"a {format_} matrix: cuSPARSE returned {status}")
        return made


# --- recurrent layers -----------------------------------------------------------------------------------------------

# Input size, hidden size, layers, steps, sequences, two directions, projection, dropout.
_NETWORKS = [
    (inputs, hidden, layers, steps, batch, both, projection, dropout)
    for inputs, hidden in ((64, 64), (128, 256), (256, 128), (512, 512), (300, 650), (1024, 1024))
    for layers, both, projection, dropout in (
        (1, False, 0, 0.0),
        (2, False, 0, 0.0),
        (2, True, 0, 0.0),
        (2, False, 32, 0.0),
        (3, True, 0, 0.2),
    )
    for steps, batch in ((35, 20), (128, 64), (16, 256))
]


def _recurrent(session: Session, cell: str, dtype: str) -> list[dict[str, Any]]:
    """Forward and backward passes of ``torch.nn``'s layers: requests in bytes asked for."""
    meter = session.meter
    meter.start_history()
    marks: list[tuple[Mark, Mark]] = []
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + _PATIENCE_S
    for inputs, hidden, layers, steps, batch, both, projection, dropout in _NETWORKS:
        if (projection and cell != "LSTM") or time.monotonic() > deadline:
            continue
        settings = {"num_layers": layers, "bidirectional": both, "dropout": dropout}
        if projection:
            settings["proj_size"] = projection
        asked = {"input_size": inputs, "hidden_size": hidden, **settings}
        place = {"device": meter.device, "dtype": getattr(torch, dtype)}
        layer = getattr(torch.nn, cell)(**asked).to(**place)
        x = torch.ones(steps, batch, inputs, requires_grad=True, **place)
        row: dict[str, Any] = {**asked, "steps": steps, "batch": batch}
        begun = meter.mark()
        y, _ = layer(x)
        marks.append((begun, meter.mark()))
        gradient = torch.ones_like(y)
        begun = meter.mark()
        y.backward(gradient)
        marks.append((begun, meter.mark()))
        rows.append(row)
        del layer, x, y, gradient, _
        torch.cuda.synchronize()
    requests = requests_between(meter.history(), marks)
    for number, row in enumerate(rows):
        row["forward"], row["backward"] = requests[2 * number], requests[2 * number + 1]
    return rows
