"""The whole pipeline on traces computed by hand, and on GPU traces that tell their own peak."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

import xmem
from training_sample import training
from xmem.errors import ConfigError, TraceError
from xmem.estimation.calibration import Residuals
from xmem.testing.trace_builder import TraceBuilder

MIB = 1 << 20
TRACES = Path(os.environ.get("XMEM_SHARED", Path(__file__).parents[3].parent / "shared")) / "data" / "traces"


def test_categories_add_up_to_the_allocated_bytes_at_the_peak() -> None:
    estimate = xmem.estimate(training().bytes(), gpu="rtx-3060")
    assert estimate.breakdown.category == {
        "parameter": 4 * MIB + 1024,
        "gradient": 4 * MIB + 1024,
        "optimizer_state": 4 * MIB,
        "activation": 3 * MIB,
    }
    for view in (
        estimate.breakdown.category,
        estimate.breakdown.module,
        estimate.breakdown.operator,
        estimate.breakdown.source_line,
    ):
        assert sum(view.values()) == estimate.peak_allocated_bytes == 15 * MIB + 2048


def test_the_peak_names_iteration_phase_module_operator_and_line_of_the_forward() -> None:
    peak = xmem.estimate(training().bytes()).peak
    assert (peak.iteration, peak.phase, peak.module, peak.operator) == (
        1,
        "backward",
        "Net.fc",
        "AddmmBackward0",
    )
    assert peak.source_line == "train.py:7"


def test_slack_of_unsplit_blocks_is_a_category_of_its_own() -> None:
    # 11.5 MiB rounds to a segment of 12 MiB whose remainder is too small to split off
    estimate = xmem.estimate(training(batch_bytes=23 * MIB // 2).bytes())
    assert estimate.breakdown.category["allocator_slack"] == MIB // 2
    assert sum(estimate.breakdown.category.values()) == estimate.peak_allocated_bytes


def test_an_estimate_has_bounds_that_widen_with_the_confidence() -> None:
    text = training().bytes()
    usual, sure = xmem.estimate(text, gpu="rtx-3060"), xmem.estimate(text, gpu="rtx-3060", confidence=0.99)
    assert usual.interval is not None
    assert sure.interval is not None
    assert (usual.interval.confidence, sure.interval.confidence) == (0.9, 0.99)
    assert sure.interval.low_bytes <= usual.interval.low_bytes <= usual.device_peak_bytes
    assert usual.device_peak_bytes <= usual.interval.high_bytes <= sure.interval.high_bytes
    assert sure.interval.high_bytes > usual.device_peak_bytes
    with pytest.raises(ConfigError, match="confidence 99"):
        xmem.estimate(text, confidence=99)


def test_bounds_are_those_of_runs_of_the_same_way_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {"cpu": {"other": Residuals((*(0.0,) * 8, 0.25))}}
    monkeypatch.setattr(xmem.estimation.calibration, "shipped", lambda: measured)
    estimate = xmem.estimate(training().bytes(), gpu="rtx-3060")
    assert estimate.interval is not None
    assert estimate.interval.basis == "9 measured runs (cpu, other)"
    assert estimate.interval.low_bytes == estimate.device_peak_bytes
    assert estimate.interval.high_bytes == estimate.context_bytes + estimate.peak_reserved_bytes * 5 // 4


def test_recordings_of_gpus_are_bounded_by_any_allocator() -> None:
    trace = TraceBuilder().annotation("Optimizer.step#SGD.step", 50, 60)
    for address, size in ((1, 3 * MIB), (2, 5 * MIB)):
        trace.alloc(address, size, 10 * address, device_type=1, device_index=0)
        trace.free(address, 10 * address + 5, device_type=1, device_index=0)
    estimate = xmem.estimate(trace.with_metadata(format=1, iterations=2).bytes())
    assert estimate.interval is not None
    bounds = estimate.simulation.bounds
    assert (estimate.interval.low_bytes, estimate.interval.high_bytes) == (
        bounds.perfect_reuse_bytes,
        bounds.never_reuse_bytes,
    )


def ties() -> TraceBuilder:
    """Requests among which the rules of torch 2.12 find another block of the same size."""
    random, trace, live = Random(16), TraceBuilder(), list[int]()
    for now in range(2, 121):
        if live and random.random() < 0.5:
            trace.free(live.pop(random.randrange(len(live))), now)
        else:
            live.append(now - 1)
            trace.alloc(now - 1, random.choice((2, 3, 4, 5, 6, 8)) * MIB, now)
    return trace.annotation("Optimizer.step#SGD.step", 121, 122)


def test_it_says_how_much_the_unknown_release_matters() -> None:
    trace = ties().with_metadata(format=1, iterations=2).bytes()
    newest = xmem.estimate(trace, torch_version="2.13")
    peak = xmem.estimate(trace, torch_version="2.12").peak_reserved_bytes
    assert peak != newest.peak_reserved_bytes
    assumptions = " ".join(xmem.estimate(trace).assumptions)
    assert f"{peak // MIB}.00 MiB with those of 2.12; name the release with --torch" in assumptions
    assert "nothing names" not in " ".join(newest.assumptions)


def test_a_verdict_needs_a_gpu_or_a_capacity() -> None:
    text = training().bytes()
    assert xmem.estimate(text).fits is None
    assert xmem.estimate(text, gpu="rtx-3060").fits is True
    small = xmem.estimate(text, gpu="rtx-3060", capacity="160MiB")
    assert small.fits is False
    assert small.verdict is not None
    assert small.verdict.margin_bytes < 0
    assert small.simulation.oom is not None
    assert small.simulation.num_ooms == 1


def test_reclaiming_cached_segments_can_make_a_job_fit() -> None:
    trace = TraceBuilder()
    trace.alloc(0x1, 30 * MIB, 1).free(0x1, 2).alloc(0x2, 40 * MIB, 3).free(0x2, 4)
    trace.annotation("Optimizer.step#SGD.step", 5, 6)
    roomy = xmem.estimate(trace.bytes(), capacity=(256 + 100) * MIB)
    tight = xmem.estimate(trace.bytes(), capacity=(256 + 50) * MIB)
    assert (roomy.peak_reserved_bytes, tight.peak_reserved_bytes) == (70 * MIB, 40 * MIB)
    assert (roomy.simulation.num_alloc_retries, tight.simulation.num_alloc_retries) == (0, 1)
    assert tight.fits is True


@pytest.mark.parametrize(
    ("trace", "says"),
    [
        (TraceBuilder().operator("aten::relu", 0, 9), "no \\[memory\\] events"),
        (TraceBuilder().alloc(0x1, 64, 5), "no operators"),
        (
            TraceBuilder().backward("MmBackward0", 1, 9, sequence_number=1).alloc(0x1, 64, 5),
            "no optimizer step",
        ),
        (training().with_metadata(format=99), "format that this version does not know"),
        (
            training().with_metadata(
                tensors={"role": ["odd"], "name": ["w"], "address": [1], "size_bytes": [1], "time_ns": [1]}
            ),
            "list of tensors",
        ),
    ],
)
def test_a_trace_that_cannot_be_estimated_says_why(trace: TraceBuilder, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        xmem.estimate(trace.bytes())


def test_a_script_whose_tensors_all_stay_on_the_host_is_an_error_not_zero_bytes() -> None:
    trace = TraceBuilder().with_metadata(device_requests=1, iterations=1).host(0, 50).alloc(0x1, 64, 5)
    with pytest.raises(TraceError, match="no device memory is left"):
        xmem.estimate(trace.annotation("Optimizer.step#SGD.step", 60, 70).bytes())


@pytest.mark.parametrize("version", ["banana", "2"])
def test_an_invalid_version_is_a_config_error(version: str) -> None:
    with pytest.raises(ConfigError, match=version):
        xmem.estimate(training().bytes(), torch_version=version)


def test_a_version_before_its_release_is_read() -> None:
    assert xmem.estimate(training().bytes(), torch_version="2.14rc1").target.torch_version == "2.14rc1"


def test_settings_are_checked_before_the_trace_is_read() -> None:
    with pytest.raises(ConfigError, match="no_such_key"):
        xmem.estimate("/does/not/exist.json", alloc_conf="no_such_key:1")


@pytest.mark.parametrize("name", ["t4_toy_training_fp32", "t4_toy_training_amp", "ddp_training_v100"])
def test_the_peak_of_a_gpu_trace_is_the_one_that_its_allocator_counted(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    trace = xmem.read_trace(path)
    on_gpu = trace.memory.device_type == 1
    counted = int(np.max(trace.memory.total_allocated[on_gpu]))
    estimate = xmem.estimate(trace)
    # A GPU trace gives the sizes of blocks, slack included: their sum is the allocator's own counter.
    assert estimate.peak_requested_bytes == counted
    # Replayed, some of these sizes get slack again, since where they lay before the trace began is not known.
    assert estimate.peak_allocated_bytes == pytest.approx(counted, rel=0.003)


def test_the_bounds_enclose_the_peak() -> None:
    estimate = xmem.estimate(training().bytes())
    bounds = estimate.simulation.bounds
    assert bounds.perfect_reuse_bytes == estimate.peak_allocated_bytes == 15 * MIB + 2048
    assert bounds.perfect_reuse_bytes <= estimate.peak_reserved_bytes <= bounds.never_reuse_bytes


@pytest.mark.parametrize("device_type", [0, 1])
@pytest.mark.parametrize(("size", "reason"), [(64, "no operators"), (0, "no \\[memory\\] events")])
def test_a_run_without_operators_or_blocks_is_refused(device_type: int, size: int, reason: str) -> None:
    trace = TraceBuilder().with_metadata(iterations=1).alloc(0x1, size, 5, device_type=device_type)
    with pytest.raises(TraceError, match=f"{reason}.*xmem-fast capture"):
        xmem.estimate(trace.bytes())


def test_iterations_that_differ_widen_the_interval_unless_the_script_was_seen_whole() -> None:
    def growing(**metadata: object) -> xmem.Estimate:
        trace = TraceBuilder().with_metadata(iterations=3, device_requests=1, argv=["a.py"], **metadata)
        for step in range(3):
            begin = 10 + 100 * step
            trace.iteration(step, begin, begin + 100)
            trace.operator("aten::mm", begin + 10, begin + 30)
            trace.alloc(1, (step + 1) * 8 * MIB, begin + 20).free(1, begin + 40)
            trace.annotation("Optimizer.step#SGD.step", begin + 50, begin + 60)
        return xmem.estimate(trace.bytes())

    open_end, whole = growing(script_ended=False), growing(script_ended=True)
    assert open_end.interval is not None
    assert whole.interval is not None
    assert open_end.interval.high_bytes >= whole.interval.high_bytes + 8 * MIB
    assert any("iterations differ by 8.00 MiB" in text for text in open_end.assumptions)
    assert not any("iterations differ" in text for text in whole.assumptions)


@pytest.mark.parametrize(("address", "is_used"), [(0x1000, True), (0x3000, False)])
def test_a_record_of_the_allocator_that_does_not_fit_the_trace_is_not_used_and_that_is_said(
    address: int, is_used: bool
) -> None:
    requests = {
        "device": 0,
        "address": [address],
        "size_bytes": [1000],
        "order": [-1],
        **{name: [] for name in ("stream", "mempool", "waits", "restored", "marks")},
    }
    trace = TraceBuilder().with_metadata(
        mode="phantom",
        iterations=1,
        device_requests=1,
        versions={"torch": "2.12.0"},
        phantom={"requests": [requests]},
    )
    trace.iteration(0, 0, 100).operator("aten::mm", 1, 90)
    trace.alloc(0x1000, 2048, 5, device_type=1, device_index=0)
    estimate = xmem.estimate(trace.bytes())
    assert any("does not fit the memory events" in line for line in estimate.assumptions) is not is_used
    assert estimate.peak_allocated_bytes == (1024 if is_used else 2048)


def test_the_interval_has_both_orders_of_addresses_where_ties_depend_on_them() -> None:
    # Two free blocks of 20 MiB, one of them beside a block that dies later: only if the request of 12 MiB
    # takes the other one does the last request find its 64 MiB in one piece.
    def of_release(torch: str) -> xmem.Estimate:
        trace = TraceBuilder().with_metadata(
            mode="phantom",
            iterations=1,
            device_requests=1,
            argv=["a.py"],
            versions={"torch": torch},
            script_ended=True,
        )
        trace.iteration(0, 0, 100)
        trace.operator("aten::mm", 1, 90)
        for number, mib, begin, end in (
            (9, 64, 2, 4),
            (1, 44, 6, 18),
            (2, 20, 8, 12),
            (3, 20, 10, 14),
            (4, 12, 16, 24),
            (5, 64, 20, 22),
        ):
            trace.alloc(number, mib * MIB, begin, device_type=1, device_index=0)
            trace.free(number, end, device_type=1, device_index=0)
        trace.annotation("Optimizer.step#SGD.step", 92, 95)
        return xmem.estimate(trace.bytes())

    by_address, by_age = of_release("2.11.0"), of_release("2.13.0")
    assert by_address.interval is not None
    assert by_age.interval is not None
    from_the_top, from_the_bottom = 84 * MIB, 148 * MIB
    assert by_address.peak_reserved_bytes == from_the_top
    assert by_address.interval.high_bytes >= from_the_bottom
    assert by_age.peak_reserved_bytes == from_the_bottom  # of the two, the older segment


def test_a_run_that_takes_nothing_on_a_gpu_is_refused() -> None:
    trace = TraceBuilder().operator("aten::mkldnn_convolution", 0, 50).alloc(0x10, 1000, 5).free(0x10, 20)
    with pytest.raises(TraceError, match="nothing of what the trace shows takes memory of a GPU"):
        xmem.estimate(trace.bytes(), gpu="rtx-3060")


def test_kernels_of_a_gpu_without_its_memory_are_refused() -> None:
    trace = training()
    trace.metadata = None
    for number in range(3):
        trace.span("kernel", f"gemm_{number}", 10 + number, 11 + number)
    with pytest.raises(TraceError, match=r"3 GPU kernels but no memory events of a GPU.*profile_memory=True"):
        xmem.estimate(trace.bytes(), gpu="rtx-3060")
