"""The tables of the phantom against what the installed releases of torch need."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest

from ..conftest import PYTHONS, needs_torch

_TOOL = Path(__file__).resolve().parents[3] / "tools" / "phantom_surface.py"
_spec = importlib.util.spec_from_file_location("phantom_surface", _TOOL)
phantom_surface = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(phantom_surface)

_EACH_PYTHON = pytest.mark.parametrize(
    "python", PYTHONS or [pytest.param("", marks=pytest.mark.skip("no CUDA build of torch here"))]
)
_EMULATED = [library for library in phantom_surface.PREFIXES if library not in phantom_surface.NOT_EMULATED]


@cache
def _coverage(python):
    folder = next(Path(python).parents[1].glob("lib/python3*/site-packages/torch/lib"))
    return {row.library: row for row in phantom_surface.coverage(folder)}


@pytest.mark.parametrize("library", _EMULATED)
@_EACH_PYTHON
def test_all_that_torch_needs_is_answered(python, library):
    if library == "cuda":
        needs_torch(python, (2, 6), "it names functions for graphics, which it does not call")
    assert sorted(_coverage(python)[library].missing) == []


@_EACH_PYTHON
def test_needed_functions_are_found(python):
    rows = _coverage(python)
    assert {"cudaMalloc", "cudaLaunchKernel", "cudaStreamSynchronize"} <= rows["cudart"].needed
    assert "cublasSgemm_v2" in rows["cublas"].needed
    assert "cuMemAddressReserve" in rows["cuda"].needed  # only named in a string
    assert "cudnnBackendExecute" in rows["cudnn"].needed


def test_an_elf_file_is_expected():
    with pytest.raises(ValueError, match="ELF"):
        phantom_surface.dynamic_symbols(b"!<arch>\n" + bytes(100))


def test_a_name_belongs_to_the_longest_library():
    assert phantom_surface.library_of("cublasLtMatmul") == "cublasLt"
    assert phantom_surface.library_of("cusparseLtMatmul") == "cusparseLt"
    assert phantom_surface.library_of("cuMemCreate") == "cuda"
    assert phantom_surface.library_of("cungqr_") is None
