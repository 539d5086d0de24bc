"""Buffers of cuSPARSE."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch

from xmem_measure.parts.libraries.asked import Functions, Table, wide

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


def tables(config: dict[str, Any]) -> Iterator[Table]:
    library = Functions("libcusparse")
    asked = _Sparse(library, config["index"], config["dtype"])
    yield from asked.tables()


class _Sparse:
    """cuSPARSE's queries with one type of indices and numbers; matrices are random."""

    def __init__(self, library: Functions, index: str, dtype: str) -> None:
        self._library = library
        self._index, self._torch_index = (
            (_INDEX_32, torch.int32) if index == "int32" else (_INDEX_64, torch.int64)
        )
        self._dtype = getattr(torch, dtype)
        self._type = {"float32": 0, "float64": 1, "bfloat16": 14, "complex64": 4}[dtype]
        self._handle = ctypes.c_void_p()
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
        made = ctypes.c_void_p()
        leading = columns if row_major else rows
        order = _ROW_MAJOR if row_major else _COLUMN_MAJOR
        where = ctypes.c_void_p(self._many.data_ptr())
        self._library.cusparseCreateDnMat(
            ctypes.byref(made), wide(rows), wide(columns), wide(leading), where, self._type, order
        )
        return made

    def _vector(self, length: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        where = ctypes.c_void_p(self._many.data_ptr())
        self._library.cusparseCreateDnVec(ctypes.byref(made), wide(length), where, self._type)
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
        a, state = matrix.descriptor("csr"), ctypes.c_void_p()
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
        c, state = ctypes.c_void_p(), ctypes.c_void_p()
        none = ctypes.c_void_p()
        self._library.cusparseCreateCsr(
            *(
                ctypes.byref(c),
                wide(rows),
                wide(rows),
                wide(0),
                ctypes.c_void_p(offsets.data_ptr()),
                none,
                none,
            ),
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
            if status := function(
                self._handle, *same, ctypes.byref(size), ctypes.c_void_p(kept[-1].data_ptr())
            ):
                return -status, -status, -status
        counts = [ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int64()]
        self._library.cusparseSpMatGetSize(c, *(ctypes.byref(count) for count in counts))
        return sizes[0], sizes[1], counts[2].value

    def _transpose(self, matrix: _Matrix, rows: int, columns: int) -> int:
        a = matrix.pointers()
        many = ctypes.c_void_p(self._many.data_ptr())
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
        library: Functions,
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
        return {name: ctypes.c_void_p(tensor.data_ptr()) for name, tensor in tensors.items()}

    def descriptor(self, format_: str) -> ctypes.c_void_p:
        made, at = ctypes.c_void_p(), self.pointers()
        size = (wide(self._rows), wide(self._column_count), wide(self.nonzeros))
        if format_ == "csr":
            arrays = (at["offsets"], at["columns"], at["values"], self._index, self._index)
            status = self._library.cusparseCreateCsr(ctypes.byref(made), *size, *arrays, 0, self._type)
        else:
            arrays = (at["rows"], at["columns"], at["values"], self._index)
            status = self._library.cusparseCreateCoo(ctypes.byref(made), *size, *arrays, 0, self._type)
        if status:
            raise RuntimeError(f"a {format_} matrix: cuSPARSE returned {status}")
        return made
