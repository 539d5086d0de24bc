"""Traces of GPUs from elsewhere: what PyTorch's own allocator says in them has the last word."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

import xmem
from command_line import xmem_fast
from xmem.reports.schedulers import Scheduler, render
from xmem.testing.trace_builder import TraceBuilder

MIB = 1 << 20
TRACES = Path(os.environ.get("XMEM_SHARED", Path(__file__).parents[3].parent / "shared")) / "data" / "traces"


def held_before(reserved_mib: int) -> TraceBuilder:
    """A GPU's trace that shows a block of 40 MiB, of an allocator that had reserved more before it began."""
    trace = TraceBuilder()
    trace.operator("aten::mm", 0, 10)
    trace.memory(
        40 * MIB,
        1,
        address=0x1000,
        device_type=1,
        device_index=0,
        total_allocated=40 * MIB,
        total_reserved=reserved_mib * MIB,
    )
    trace.annotation("Optimizer.step#SGD.step", 11, 12)
    return trace


def taken_and_given_back(
    trace: TraceBuilder, changes: Iterable[tuple[int, int, int]], reserved_mib: int
) -> None:
    """A block at one address: when, by how many MiB, and what the allocator then counts."""
    for time, size, total in changes:
        trace.memory(
            size * MIB,
            time,
            address=0x1000,
            device_type=1,
            device_index=0,
            total_allocated=total * MIB,
            total_reserved=reserved_mib * MIB,
        )


def two_steps(reserved_mib: int) -> TraceBuilder:
    """A GPU's trace with a whole iteration, of an allocator that had reserved something else."""
    trace = TraceBuilder()
    for begin in (0, 100):
        trace.operator("aten::mm", begin, begin + 10)
        taken_and_given_back(trace, ((begin + 1, 3, 3), (begin + 2, -3, 0)), reserved_mib)
        trace.annotation("Optimizer.step#SGD.step", begin + 11, begin + 12)
    return trace


def test_the_need_is_never_below_what_the_allocator_held() -> None:
    estimate = xmem.estimate(held_before(1676).bytes(), gpu="rtx-3060")
    assert estimate.measured is not None
    assert estimate.measured.peak_reserved_bytes == 1676 * MIB
    assert estimate.measured.replay_agrees is False
    assert estimate.peak_reserved_bytes == 1676 * MIB
    assert estimate.device_peak_bytes == 1676 * MIB + estimate.context_bytes
    (said,) = [each for each in estimate.diagnostics if each.kind == "memory_before_the_trace"]
    assert "1.64 GiB" in said.message
    assert estimate.interval is None  # one step of the optimizer does not enclose an iteration
    assert estimate.doubt == "It may not fit: the trace shows only a part of the run"


def test_a_count_of_the_allocator_lowers_the_need_too() -> None:
    estimate = xmem.estimate(two_steps(4).bytes(), gpu="rtx-3060")
    assert estimate.peak_reserved_bytes == 4 * MIB  # a request of 3 MiB would take a segment of 20 MiB
    assert estimate.device_peak_bytes == 4 * MIB + estimate.context_bytes
    parts = {part.name: part.bytes for part in estimate.card}
    assert sum(parts.values()) == estimate.device_peak_bytes
    assert parts["tensors"] == 3 * MIB
    assert parts["fragmentation"] + parts["cached"] == 1 * MIB  # not the 17 MiB of the replay
    assert "not_replayed" not in parts


def test_the_count_of_a_whole_iteration_is_a_measurement() -> None:
    estimate = xmem.estimate(two_steps(400).bytes(), gpu="rtx-3060")
    assert estimate.interval is not None
    assert estimate.interval.low_bytes == estimate.device_peak_bytes
    assert estimate.interval.high_bytes == estimate.device_peak_bytes + 20 * MIB  # a later iteration splits
    assert "counted by PyTorch's own allocator" in estimate.interval.basis
    assert estimate.doubt is None
    capacity = estimate.device_peak_bytes + MIB
    barely = xmem.estimate(two_steps(400).bytes(), gpu="rtx-3060", capacity=capacity)
    assert barely.fits is True
    assert barely.doubt is not None
    changed = xmem.estimate(two_steps(400).bytes(), gpu="rtx-3060", alloc_conf="max_split_size_mb:20")
    assert changed.interval is not None
    assert "counted by" not in changed.interval.basis


def test_what_was_allocated_before_the_trace_has_its_own_category() -> None:
    trace = TraceBuilder().operator("aten::mm", 0, 10)
    for time, address, size, total in ((1, 0x1000, 8, 108), (5, 0x1000, -8, 100), (8, 0x9000, -60, 40)):
        trace.memory(
            size * MIB,
            time,
            address=address,
            device_type=1,
            device_index=0,
            total_allocated=total * MIB,
            total_reserved=200 * MIB,
        )
    trace.annotation("Optimizer.step#SGD.step", 11, 12)
    category = xmem.estimate(trace.bytes()).breakdown.category
    assert category["before_trace"] == 100 * MIB
    assert xmem.estimate(trace.bytes()).peak_allocated_bytes == 108 * MIB


def inference_with(weights: list[list[int]], before_mib: int) -> TraceBuilder:
    """A GPU's trace of embeddings and linear layers, whose allocator held some memory before it."""
    trace = TraceBuilder()
    for number, shape in enumerate(weights):
        name = "aten::linear" if number else "aten::embedding"
        dims = [[1, shape[1]], shape] if number else [shape, [1, 1]]
        begin = 10 * number
        trace.operator(name, begin, begin + 9, input_dims=dims, input_types=["float", "float"])
    return trace.memory(
        MIB,
        5,
        address=0x1000,
        device_type=1,
        device_index=0,
        total_allocated=(before_mib + 1) * MIB,
        total_reserved=(before_mib + 40) * MIB,
    )


@pytest.mark.parametrize(
    ("before_mib", "parameter_mib", "rest_mib"),
    [(30, 20, 10), (20, 20, 0), (12, 12, 0), (13, 12, 1), (11, 0, 11)],
    ids=["and more", "no more", "tied", "tied and more", "not the weights"],
)
def test_weights_from_before_a_trace_are_called_parameters(
    before_mib: int, parameter_mib: int, rest_mib: int
) -> None:
    vocabulary, hidden = [2048, 1024], [1024, 1024]  # 8 MiB and 4 MiB
    trace = inference_with([vocabulary, hidden, vocabulary], before_mib)
    estimate = xmem.estimate(trace.bytes())
    category = estimate.breakdown.category
    assert category.get("parameter", 0) == parameter_mib * MIB
    assert category.get("before_trace", 0) == rest_mib * MIB
    assert estimate.peak_allocated_bytes == (before_mib + 1) * MIB
    assert estimate.peak_reserved_bytes == (before_mib + 40) * MIB


def test_gradients_and_state_from_before_a_trace_are_told_by_shapes_and_the_optimizers_name() -> None:
    trace = TraceBuilder()
    for begin in (0, 100):
        trace.operator("aten::linear", begin, begin + 9, sequence_number=begin)
        trace.operator(
            "torch::autograd::AccumulateGrad",
            begin + 10,
            begin + 15,
            input_dims=[[1024, 1024]],
            input_types=["float"],
        )
        taken_and_given_back(trace, ((begin + 1, 4, 34), (begin + 8, -4, 30)), 60)  # of the forward pass
        trace.annotation("Optimizer.step#AdamW.step", begin + 16, begin + 19)
    category = xmem.estimate(trace.bytes()).breakdown.category
    assert category["parameter"] == 4 * MIB
    assert category["optimizer_state"] == 8 * MIB
    assert category["gradient"] == 4 * MIB  # no block of it is ever made: it is accumulated in place
    assert category["before_trace"] == 14 * MIB


def test_a_trace_without_totals_says_that_more_may_be_needed() -> None:
    trace = TraceBuilder().annotation("Optimizer.step#SGD.step", 50, 60)
    trace.alloc(1, 3 * MIB, 10, device_type=1, device_index=0)
    trace.free(1, 20, device_type=1, device_index=0)
    estimate = xmem.estimate(trace.bytes(), gpu="rtx-3060")
    assert estimate.interval is None
    assert any("no totals of PyTorch's allocator" in each for each in estimate.assumptions)


@pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces here")
def test_tune_and_advise_want_the_release_that_runs_a_job_of_2021() -> None:
    path = TRACES / "old_format_resnet50_v100.json.gz"
    refused = xmem_fast("tune", path, "--gpu", "v100-16gb")
    assert refused.exit_code == 3
    assert "--torch VERSION" in refused.stderr
    assert xmem_fast("tune", path, "--gpu", "v100-16gb", "--torch", "2.6").exit_code == 0
    advised = json.loads(xmem_fast("advise", path, "--gpu", "v100-16gb", "--json").stdout)
    assert [each for each in advised["advice"] if each["remedy"] == "alloc_conf"] == []
    (why,) = [each["reason"] for each in advised["refused"] if each["remedy"] == "alloc_conf"]
    assert "--torch VERSION" in why
    newer = xmem_fast("advise", path, "--gpu", "v100-16gb", "--torch", "2.6", "--json")
    assert [each["remedy"] for each in json.loads(newer.stdout)["advice"]] == ["alloc_conf"]


def test_tune_tries_what_all_releases_have_where_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(two_steps(20).bytes())
    tried = {}
    for arguments in ((), ("--torch", "2.13")):
        result = xmem_fast("tune", path, "--capacity", "4GiB", "--json", *arguments)
        tried[arguments] = json.loads(result.stdout)["candidates"]
    assert tried[()] < tried["--torch", "2.13"]


@pytest.mark.parametrize(
    ("trace", "doubt"),
    [(held_before(300), "It may not fit: the trace shows only a part of the run"), (two_steps(300), None)],
    ids=["a part", "a whole iteration"],
)
def test_check_says_what_the_verdict_leaves_open(
    tmp_path: Path, trace: TraceBuilder, doubt: str | None
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(trace.bytes())
    result = xmem_fast("check", path, "--gpu", "rtx-3060")
    assert result.exit_code == 0
    assert ("may not fit" in result.stdout) == (doubt is not None)
    assert ("probably fits" in result.stdout) == (doubt is not None)
    (judged,) = json.loads(xmem_fast("check", path, "--gpu", "rtx-3060", "--json").stdout)["checks"]
    assert judged["doubt"] == doubt


def test_without_a_gpu_the_answer_says_what_is_open_too(tmp_path: Path) -> None:
    part, whole = tmp_path / "part.json", tmp_path / "whole.json"
    part.write_bytes(held_before(300).bytes())
    whole.write_bytes(two_steps(300).bytes())
    words = "may need more: the trace shows only a part of the run"
    for command in (("estimate",), ("check", "--budget", "4GiB")):
        assert words in " ".join(xmem_fast(*command, part).stdout.split())
        assert "may need more" not in xmem_fast(*command, whole).stdout


def test_the_page_says_what_the_verdict_leaves_open(tmp_path: Path) -> None:
    trace, page = tmp_path / "trace.json", tmp_path / "page.html"
    trace.write_bytes(held_before(300).bytes())
    assert xmem_fast("report", trace, "--gpu", "rtx-3060", "-o", page).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "It may not fit: the trace shows only a part of the run." in text
    assert "Probably fits on RTX 3060" in text
    assert xmem_fast("estimate", trace, "--gpu", "rtx-3060").stdout.startswith("Probably fits on RTX 3060")


def test_requests_to_schedulers_and_notebooks_say_what_the_verdict_leaves_open() -> None:
    part = xmem.estimate(held_before(300).bytes(), gpu="rtx-3060")
    whole = xmem.estimate(two_steps(300).bytes(), gpu="rtx-3060")
    for said in (lambda estimate: render(estimate, Scheduler.SLURM), xmem.Estimate._repr_html_):
        assert "It may not fit: the trace shows only a part of the run" in said(part)
        assert "may not fit" not in said(whole)


def test_a_card_that_is_smaller_than_what_was_held_does_not_fit() -> None:
    trace = held_before(1676).bytes()
    assert xmem.estimate(trace, capacity="1.5GiB").fits is False
    assert xmem.estimate(trace, capacity="4GiB").fits is True


@pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces here")
@pytest.mark.parametrize(
    ("name", "reserved_mib"),
    [
        ("ddp_training_v100.json.gz", 12190),
        ("h100_qwen_inference.json.gz", 2508),
        ("t4_toy_training_fp32.json.gz", 266),
        ("rocm_bert_small_inference.json.gz", 214),
    ],
)
def test_real_traces_need_what_their_allocator_reserved(name: str, reserved_mib: int) -> None:
    estimate = xmem.estimate(TRACES / name, gpu="a100-40gb")
    assert estimate.peak_reserved_bytes == reserved_mib * MIB


def of_rank(trace: TraceBuilder, noted: object) -> bytes:
    """The file of a process whose profiler noted its place in a distributed job."""
    return trace.bytes().replace(
        b'"traceEvents"', b'"distributedInfo": %s, "traceEvents"' % json.dumps(noted).encode()
    )


def test_a_rank_of_a_distributed_job_is_named() -> None:
    noted = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_count": 1}
    estimate = xmem.estimate(of_rank(two_steps(400), noted), gpu="rtx-3060")
    assert any("rank 3 of 8: other ranks can need more" in each for each in estimate.assumptions)
    assert estimate.interval is not None


@pytest.mark.parametrize(
    "noted",
    [
        None,
        [],
        {},
        {"rank": "0", "world_size": 2},
        {"rank": 2, "world_size": 2},
        {"rank": 0, "world_size": 1},
    ],
)
def test_what_names_no_rank_of_several_is_passed_over(noted: object) -> None:
    estimate = xmem.estimate(of_rank(two_steps(400), noted), gpu="rtx-3060")
    assert not any("other ranks" in each for each in estimate.assumptions)


def test_processes_that_share_a_device_have_no_interval() -> None:
    trace = two_steps(400).on(7, pid=4321)
    for time, size in ((20, 5), (30, -5)):
        trace.memory(
            size * MIB,
            time,
            address=0x9000,
            device_type=1,
            device_index=0,
            total_allocated=0,
            total_reserved=400 * MIB,
        )
    estimate = xmem.estimate(trace.bytes(), gpu="rtx-3060")
    assert any("2 processes on the same device" in each for each in estimate.assumptions)
    assert estimate.interval is None


def test_a_confidence_without_an_interval_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(held_before(1676).bytes())
    for command in (("check", path, "--budget", "4GiB"), ("estimate", path, "--format", "slurm")):
        result = xmem_fast(*command, "--confidence", "0.9")
        assert result.exit_code == 2
        assert "leave --confidence out" in result.stderr


def on_two_gpus(*, totals: bool) -> TraceBuilder:
    """A GPU's trace that also shows GPU 1: more is allocated there, but less reserved."""
    trace = two_steps(400 if totals else 0)
    for time, size, total in ((20, 7, 37), (30, -7, 30), (40, 5, 35)):
        trace.memory(
            size * MIB,
            time,
            address=0x9000,
            device_type=1,
            device_index=1,
            total_allocated=total * MIB if totals else 0,
            total_reserved=40 * MIB if totals else 0,
        )
    return trace


def test_the_answer_is_about_the_gpu_on_which_most_was_reserved() -> None:
    estimate = xmem.estimate(on_two_gpus(totals=True).bytes())
    assert estimate.measured is not None
    assert estimate.measured.peak_reserved_bytes == estimate.peak_reserved_bytes == 400 * MIB
    (said,) = [each for each in estimate.assumptions if "2 GPUs" in each]
    assert said.endswith("the answer is about GPU 0; in use on the others, at most: 37.00 MiB on GPU 1")


def test_a_gpu_of_a_size_is_named_in_plain_words() -> None:
    said = xmem.estimate(held_before(400).bytes(), capacity="4GiB").assumptions
    assert "the CUDA context of a GPU of 4.00 GiB is an assumption, not a measurement" in said


def test_without_totals_the_answer_is_about_the_gpu_with_the_most_bytes_in_the_trace() -> None:
    estimate = xmem.estimate(on_two_gpus(totals=False).bytes())
    (said,) = [each for each in estimate.assumptions if "2 GPUs" in each]
    assert said.endswith("the answer is about GPU 1; in use on the others, at most: 3.00 MiB on GPU 0")


def test_a_process_of_several_that_does_not_say_which_is_told() -> None:
    alone, together = two_steps(400), two_steps(400)
    together.operator("c10d::allreduce_", 50, 60)
    for trace, expected in ((alone, False), (together, True)):
        assumptions = xmem.estimate(trace.bytes()).assumptions
        assert any("calls collectives" in each for each in assumptions) is expected
    named = of_rank(together, {"rank": 3, "world_size": 8})
    assert not any("calls collectives" in each for each in xmem.estimate(named).assumptions)


def test_the_sentences_about_other_processes_are_in_the_text_of_the_answer(tmp_path: Path) -> None:
    merged = two_steps(400).on(7, pid=4321)
    for time, size in ((20, 5), (30, -5)):
        merged.memory(
            size * MIB, time, address=0x9000, device_type=1, device_index=0, total_reserved=400 * MIB
        )
    cases = {
        "are counted together": merged.bytes(),
        "rank 3 of 8": of_rank(two_steps(400), {"rank": 3, "world_size": 8}),
        "calls collectives": two_steps(400).operator("c10d::allreduce_", 50, 60).bytes(),
    }
    for words, trace in cases.items():
        path = tmp_path / "trace.json"
        path.write_bytes(trace)
        shown = " ".join(xmem_fast("estimate", path, "--gpu", "rtx-3060").stdout.split())
        assert words in shown
