"""What an estimate says of its policies, and policies that are switched off."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import xmem
from xmem.errors import ConfigError
from xmem.estimation.observation import observe
from xmem.orchestration.plan import CPU_TRACE, GPU_TRACE
from xmem.reports.terminal.summary import render
from xmem.testing.trace_builder import TraceBuilder

NOISE, MASK, OUTPUT, REORDER = 4096, 1024, 2048, 8192


def trained() -> bytes:
    """The peak is in the second product: the dropout's noise, two results, and a reorder of the CPU's."""
    return (
        TraceBuilder()
        .iteration(0, 0, 200)
        .operator("aten::dropout", 0, 50, input_types=["float"])
        .operator("aten::empty_like", 1, 9)
        .alloc(0x10, NOISE, 5)
        .operator("aten::mm", 60, 80)
        .alloc(0x20, OUTPUT, 70)
        .operator("aten::mm", 90, 140)
        .alloc(0x30, REORDER, 95)
        .free(0x30, 100)
        .alloc(0x40, OUTPUT, 110)
        .free(0x40, 150)
        .free(0x20, 151)
        .free(0x10, 152)
        .annotation("Optimizer.step#SGD.step", 160, 190)
        .bytes()
    )


def test_recorded_bytes_and_changes_add_up_to_the_peak() -> None:
    estimate = xmem.estimate(trained())
    changes = {policy.name: policy.bytes_at_peak for policy in estimate.policies}
    assert changes.pop("resize_dropout_masks") == MASK - NOISE
    assert changes.pop("add_cublas_workspaces") == 8_519_680
    assert set(changes.values()) == {0}  # the reorder is not alive then
    recorded = NOISE + 2 * OUTPUT
    assert estimate.peak.requested_bytes == recorded + MASK - NOISE + 8_519_680


def test_a_policy_that_is_off_changes_nothing_and_is_listed_as_off() -> None:
    estimate = xmem.estimate(trained(), without_policies=["add_cublas_workspaces", "drop_onednn_temporaries"])
    off = [policy.name for policy in estimate.policies if not policy.applied]
    assert off == ["drop_onednn_temporaries", "add_cublas_workspaces"]
    assert estimate.peak.requested_bytes == MASK + OUTPUT + REORDER


def test_facts_of_an_observation_can_be_switched_off_later() -> None:
    trace = (
        TraceBuilder()
        .with_metadata(device_requests=1, iterations=1)
        .host(0, 10)
        .alloc(0x10, 100_000, 5)
        .operator("aten::relu", 20, 30)
        .alloc(0x20, 4096, 25)
        .annotation("Optimizer.step#SGD.step", 40, 50)
    )
    observed = observe(trace.bytes())
    assert xmem.estimate(observed).peak.requested_bytes == 4096
    with_host = observed.without_policies("drop_host_memory")
    assert xmem.estimate(with_host).peak.requested_bytes == 104_096


def test_every_policy_can_be_switched_off() -> None:
    names = {policy.name for plan in (CPU_TRACE, GPU_TRACE) for policy in plan}
    estimate = xmem.estimate(trained(), without_policies=names)
    assert not any(policy.applied for policy in estimate.policies)
    assert estimate.peak.requested_bytes == NOISE + OUTPUT + REORDER


def test_an_unknown_policy_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"did you mean add_cublas_workspaces\? Use one of drop_host_memory, "
    ):
        xmem.estimate(trained(), without_policies=["add_cublas_workspace"])


def test_every_policy_says_what_it_does() -> None:
    for policy in (*CPU_TRACE, *GPU_TRACE):
        assert policy.name.isidentifier()
        assert policy.description
        assert (type(policy).__doc__ or "").strip(), policy.name


def test_the_explanation_as_a_reader_sees_it() -> None:
    out = io.StringIO()
    render(
        xmem.estimate(trained(), without_policies=["add_cublas_workspaces"]),
        Console(file=out, width=100, color_system=None),
        explain=True,
    )
    assert (
        "Bytes at the peak, by policy\n"
        "  as recorded                               8.00 KiB\n"
        "  drop_onednn_temporaries                        0 B  -8.00 KiB in 1 block of the run\n"
        "  resize_dropout_masks                     -3.00 KiB  -3.00 KiB in 1 block of the run\n"
    ) in out.getvalue()
    assert "Switched off\n  - add_cublas_workspaces\n" in out.getvalue()
