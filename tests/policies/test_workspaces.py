"""Workspaces of cuBLAS and cublasLt by architecture, version and what the script's environment says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies.applied import AMPERE, applied, sequence, target
from xmem.orchestration import Target
from xmem.orchestration.matmul.cublas_workspaces import (
    AddCublasLtWorkspaces,
    AddCublasWorkspaces,
    cublas_workspace_bytes,
    cublaslt_workspace_bytes,
)
from xmem.testing.trace_builder import TraceBuilder
from xmem.trace.blocks import NEVER

MIB = 1 << 20


def linears() -> TraceBuilder:
    """Two linear layers with a bias and one product without."""
    trace = TraceBuilder()
    for begin, address in ((0, 0x10), (100, 0x20)):
        trace.operator("aten::linear", begin, begin + 50).operator("aten::addmm", begin + 5, begin + 45)
        trace.alloc(address, 524_288, begin + 20)
    return trace.operator("aten::mm", 200, 240).alloc(0x30, 4096, 220)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (":4096:8", 8 * 4096 * 1024),
        (":16:8", 16 * 8 * 1024),
        (":4096:2:16:8", 8_519_680),
        ("none", 8_519_680),
    ],
)
def test_the_environment_of_the_script_sets_the_size(config: str, expected: int) -> None:
    assert cublas_workspace_bytes(target(CUBLAS_WORKSPACE_CONFIG=config)) == expected


def test_a_workspace_of_no_bytes_is_none() -> None:
    _, change = applied(AddCublasWorkspaces(), linears(), target=target(CUBLAS_WORKSPACE_CONFIG=":0:0"))
    assert change.blocks_changed == 0


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (target((2, 6)), MIB),
        (target((2, 9)), MIB),
        (target((2, 12)), 0),
        (target((2, 6), CUBLASLT_WORKSPACE_SIZE="4096"), 4 * MIB),
        (target((2, 6), CUBLASLT_WORKSPACE_SIZE="many"), MIB),
        (target((2, 6), DISABLE_ADDMM_CUDA_LT="1"), 0),
        (target((2, 9), TORCH_CUBLASLT_UNIFIED_WORKSPACE="1"), 0),
        (target((2, 6), TORCH_CUBLASLT_UNIFIED_WORKSPACE="1"), MIB),  # not known to 2.6
        (target((2, 12), TORCH_CUBLASLT_UNIFIED_WORKSPACE="0"), MIB),
    ],
)
def test_cublaslt_has_a_workspace_of_its_own_before_it_shares(target: Target, expected: int) -> None:
    assert cublaslt_workspace_bytes(target) == expected


def test_up_to_2_6_each_biased_product_takes_and_returns_one_after_its_result() -> None:
    """As recorded of torch 2.6.0: the result, 1 MiB, then at the end of the call 1 MiB back."""
    after, change = applied(AddCublasLtWorkspaces(), linears(), target=target((2, 6)))
    assert sequence(after) == [524_288, MIB, -MIB, 524_288, MIB, -MIB, 4096]
    assert (change.blocks_changed, change.bytes_changed) == (2, 2 * MIB)


def test_the_first_product_takes_cublaslts_workspace_before_cublass() -> None:
    lt, _ = applied(AddCublasLtWorkspaces(), linears(), target=target((2, 6)))
    both, _ = applied(AddCublasWorkspaces(), linears(), target=target((2, 6)))
    # in the order of the plan: cuBLAS's first, so that cublasLt's stands before it at the same instant
    assert (
        both.alloc_ns[both.size_bytes == 8_519_680].tolist() == lt.alloc_ns[lt.size_bytes == MIB][:1].tolist()
    )


def test_from_2_7_on_it_is_kept() -> None:
    after, change = applied(AddCublasLtWorkspaces(), linears(), target=target((2, 9)))
    assert change.blocks_changed == 1
    assert after.free_ns[after.size_bytes == MIB].tolist() == [NEVER]


def test_what_shares_cublass_workspace_adds_nothing() -> None:
    assert applied(AddCublasLtWorkspaces(), linears())[1].blocks_changed == 0


def test_hopper_has_the_large_workspace() -> None:
    assert cublas_workspace_bytes(replace(AMPERE, compute_capability=(9, 0))) == 32 * MIB
